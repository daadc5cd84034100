"""Integer weights: symmetric, one scale per row (W8A8 and W4A8 of spec 16: the scale of an output channel).

Shapes: N rows (outputs), K columns (inputs).
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = {8: 127, 4: 7}
"""Largest magnitude by bits; the range is symmetric, so that a scale alone says what a number means."""
LEAST_SCALE = 1e-5
"""So that rows of zeros stay zero."""


def quantize_rows(x_NK: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Rounds each row to integers times its scale: (int8 [N, K], fp32 or wider [N]).

    Raises:
        ValueError: `bits` is neither 8 nor 4.
    """
    if bits not in LARGEST:
        raise ValueError(f"bits={bits}: must be one of {', '.join(map(str, LARGEST))}")
    wide = x_NK.to(torch.promote_types(x_NK.dtype, torch.float32))
    scale_N1 = (wide.abs().amax(-1, keepdim=True) / LARGEST[bits]).clamp(min=LEAST_SCALE)
    return (wide / scale_N1).round().to(torch.int8), scale_N1[..., 0]


def pack_int4(q_NK: Tensor) -> Tensor:
    """Puts two columns of -8..7 into a byte, the even one into the low half: uint8 [N, K / 2].

    Raises:
        ValueError: K is odd.
    """
    if q_NK.shape[-1] % 2:
        raise ValueError(f"two int4 share a byte: the row length must be even, not {q_NK.shape[-1]}")
    halves = q_NK.view(torch.uint8) & 15
    return halves[..., 0::2] | (halves[..., 1::2] << 4)


def unpack_int4(packed_NK: Tensor) -> Tensor:
    """Reverses `pack_int4`: int8 [N, K]."""
    halves = torch.stack((packed_NK & 15, packed_NK >> 4), dim=-1).flatten(-2)
    return (halves.view(torch.int8) ^ 8) - 8


def integer_rows(weight: Tensor, inputs: int) -> Tensor:
    """Returns the integers [N, K] of a weight that is int8 as it is or packed int4.

    Raises:
        ValueError: it is neither, for rows of `inputs`.
    """
    if weight.dtype == torch.int8 and weight.shape[-1] == inputs:
        return weight
    if weight.dtype == torch.uint8 and 2 * weight.shape[-1] == inputs:
        return unpack_int4(weight)
    accepted = f"int8 [N, {inputs}] or packed int4, uint8 [N, {inputs} / 2]"
    raise ValueError(f"a quantised weight for {inputs} inputs must be {accepted}, not {weight.dtype} {weight.shape}")
