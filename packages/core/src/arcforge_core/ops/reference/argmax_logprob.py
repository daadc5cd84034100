"""The argmax of each row of logits and its log-prob. Shapes: N rows, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


def argmax_logprob(logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each row's most likely token and its negative log-prob.

    The log-prob of token v of row n is ``logits[n, v] - logits[n, best[n]] - rest[n]``.

    Returns:
        best [N] int64, the lowest id among equals (arbitrary if a logit is not finite); rest [N], the logarithm of the
        sum of ``exp(logit - largest)``, fp32 or wider, NaN if a logit is not finite.
    """
    wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    best_N = wide_NV.argmax(-1)
    rest_N = -wide_NV.log_softmax(-1).gather(1, best_N[:, None])[:, 0]
    return best_N, rest_N.masked_fill(~wide_NV.isfinite().all(-1), float("nan"))
