"""Integer number formats with scales: the only place that rounds, packs and dequantises values.

All formats are symmetric, so a scale alone defines an integer's value; rounding is to nearest, ties to even. Serving,
quantisation-aware training (``dequantise(quantise(x))``) and export all call these functions.

Shapes: N rows (outputs), K columns (inputs), G groups of a row, B bytes of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """Integers of `bits`, in int8 or two to a byte, and an fp32 scale for each `group` columns of a row.

    Attributes:
        bits: 8 or 4.
        group: columns that share a scale; None is the whole row (an output channel, or a token).
    """

    bits: int
    group: int | None = None

    def __post_init__(self) -> None:
        if self.bits not in (8, 4):
            raise ValueError(f"bits={self.bits}: must be 8 or 4")
        if self.group is not None and (self.group < 2 or self.group % 2):
            raise ValueError(f"group={self.group}: must be even and at least 2, or None for whole rows")

    @property
    def largest(self) -> int:
        """Largest magnitude; -128 and -8 are not used."""
        return 127 if self.bits == 8 else 7

    @property
    def least_scale(self) -> float:
        """Lower bound of scales. int4: 1e-5, as in slime's training kernel; int8: the smallest normal fp32 number."""
        return torch.finfo(torch.float32).tiny if self.bits == 8 else 1e-5

    def check(self, columns: int) -> None:
        """Raises `ValueError` with the reason if rows of this many columns do not fit this format."""
        if columns < 1 or columns % (self.group or 1):
            raise ValueError(f"rows of {columns} must be a multiple of the group size {self.group}")
        if self.bits == 4 and columns % 2:
            raise ValueError(f"two int4 share a byte: the row length must be even, not {columns}")

    def num_bytes(self, rows: int, columns: int) -> int:
        """Returns the bytes of a matrix, scales included."""
        return rows * (columns * self.bits // 8 + 4 * (columns // (self.group or columns)))


INT8 = Format(8)
"""Per output channel, or per token."""
INT4 = Format(4)
"""Per output channel: the experts of W4A8 (spec 15)."""
INT4_GROUP_32 = Format(4, 32)
INT4_GROUP_128 = Format(4, 128)


class Quantised(NamedTuple):
    """Values in a `Format`.

    Attributes:
        values: int8 [..., N, K], or uint8 [..., N, K / 2] of packed int4.
        scale: [..., N, G], fp32 or wider.
    """

    values: Tensor
    scale: Tensor


def quantise(x: Tensor, form: Format) -> Quantised:
    """Rounds each group of a row to integers times its scale, ``max(|x|) / largest``, at least `form.least_scale`.

    Args:
        x: [..., N, K] or [K], any floating dtype; computed in fp32 or wider. Non-finite values give non-finite
            scales.
        form: the format.

    Raises:
        ValueError: the row length does not fit the format.
    """
    form.check(columns := x.shape[-1])
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, form.group or columns))
    scale = (wide.abs().amax(-1) / form.largest).clamp(min=form.least_scale)
    values = (wide / scale[..., None]).round().flatten(-2).to(torch.int8)
    return Quantised(values if form.bits == 8 else pack_int4(values), scale)


def dequantise(quantised: Quantised, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns the values [..., N, K]: integers times scales, rounded once to `dtype`."""
    values, scale = quantised
    values = unpack_int4(values) if values.dtype == torch.uint8 else values
    wide = values.unflatten(-1, (scale.shape[-1], -1)).to(scale.dtype) * scale[..., None]
    out: Tensor = wide.flatten(-2).to(dtype)
    return out


def pack_int4(values: Tensor) -> Tensor:
    """Packs two columns of -8..7 into a byte, the even one into the low half: uint8 [..., N, K / 2].

    Raises:
        ValueError: K is odd.
    """
    if values.shape[-1] % 2:
        raise ValueError(f"two int4 share a byte: the row length must be even, not {values.shape[-1]}")
    halves = values.contiguous().view(torch.uint8) & 15
    return halves[..., 0::2] | (halves[..., 1::2] << 4)


def unpack_int4(packed: Tensor) -> Tensor:
    """Reverses `pack_int4`: int8 [..., N, K]."""
    halves = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    return (halves.view(torch.int8) ^ 8) - 8


def integer_rows(values: Tensor, columns: int) -> Tensor:
    """Returns the integers [..., N, K] of int8 or packed int4 values.

    Raises:
        ValueError: they are neither, for rows of this many columns.
    """
    if values.dtype == torch.int8 and values.shape[-1] == columns:
        return values
    if values.dtype == torch.uint8 and 2 * values.shape[-1] == columns:
        return unpack_int4(values)
    accepted = f"int8 [N, {columns}] or packed int4, uint8 [N, {columns} / 2]"
    raise ValueError(f"a quantised weight for {columns} inputs must be {accepted}, not {values.dtype} {values.shape}")


# ---- rows of a cache -------------------------------------------------------------------------------------------------

SCALE_BYTES = 4


def to_records(x: Tensor) -> Tensor:
    """Rounds rows to int8 and appends the bytes of each row's fp32 scale: int8 [..., K + 4].

    One tensor, so that a cache page always holds values and scales together.
    """
    values, scale = quantise(x, INT8)
    return torch.cat((values, scale.float().contiguous().view(torch.int8)), dim=-1)


def from_records(records: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Reverses `to_records`: returns the values [..., K]."""
    scale = records[..., -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)  # aligned
    return dequantise(Quantised(records[..., :-SCALE_BYTES], scale), dtype)


def wide_rows(rows: Tensor) -> Tensor:
    """Returns cached rows unchanged, or dequantised if they are int8 records."""
    return from_records(rows) if rows.dtype == torch.int8 else rows
