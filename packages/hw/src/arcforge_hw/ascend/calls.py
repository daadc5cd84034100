"""The one door to torch_npu's operators, and the layouts in which they take lengths, pages and indices.

Shapes: T query tokens, S keys, B segments, K selected keys, C latent and rotated part of an entry.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LATENT, ROTATED = 512, 64
"""Sizes of an entry's parts that sparse attention supports."""
LAST = 2**31 - 1


def npu(name: str) -> Any:
    """Returns the operator ``torch.ops.npu.NAME``; torch_npu must be imported."""
    return getattr(torch.ops.npu, name)


def ends(cumulative: Tensor, device: torch.device) -> Tensor:
    """Returns int32 prefix sums without the leading 0, [B] on the device."""
    return cumulative[1:].to(device, torch.int32)


def ascending(indices_TK: Tensor) -> Tensor:
    """Returns int64 indices in ascending order, -1 at the end, from int32 ones in any order."""
    sorted_TK = torch.where(indices_TK < 0, LAST, indices_TK).sort(-1).values
    return torch.where(sorted_TK == LAST, -1, sorted_TK).long()


def index_list(indices_TK: Tensor) -> Tensor:
    """Returns int32 [T, 1, K], valid indices first."""
    return indices_TK.to(torch.int32)[:, None].contiguous()


def matrices(weight: Tensor) -> Tensor:
    """Returns a weight whose rows or columns are contiguous, as products take it."""
    return weight if weight.is_contiguous() or weight.mT.is_contiguous() else weight.contiguous()


def parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the latent and the rotated part, which the operators take apart, contiguous."""
    return x[..., :LATENT].contiguous(), x[..., LATENT:].contiguous()
