"""The argmax of each row of logits and its log-prob, in one call of C++. Shapes: N rows, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native

_function = native.by_dtype("argmax_logprob", "3p 3i")


def argmax_logprob(logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    """See `arcforge_core.ops.reference.argmax_logprob`."""
    if not native.direct(logits_NV) or not logits_NV.numel():
        return reference.argmax_logprob(logits_NV)
    logits_NV = logits_NV.contiguous()
    rows, width = logits_NV.shape
    best_N = logits_NV.new_empty(rows, dtype=torch.int64)
    rest_N = logits_NV.new_empty(rows, dtype=torch.promote_types(logits_NV.dtype, torch.float32))
    _function(logits_NV.dtype)(*native.pointers(logits_NV, best_N, rest_N), rows, width, torch.get_num_threads())
    return best_N, rest_N
