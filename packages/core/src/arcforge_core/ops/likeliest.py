"""What greedy sampling and log-probs need of a row of logits. Shapes: N rows, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


def likeliest(logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each row's likeliest token, and how far below certain it is.

    So token v of row n has the log-prob ``logits[n, v] - logits[n, best[n]] - rest[n]``.

    Returns:
        best [N] int64, the lowest number of equals (any where a logit is not finite); rest [N], the logarithm of the
        sum of ``exp(logit - largest)``, fp32 or wider, NaN where a logit is not finite.
    """
    wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    best_N = wide_NV.argmax(-1)
    rest_N = -wide_NV.log_softmax(-1).gather(1, best_N[:, None])[:, 0]
    return best_N, rest_N.masked_fill(~wide_NV.isfinite().all(-1), float("nan"))
