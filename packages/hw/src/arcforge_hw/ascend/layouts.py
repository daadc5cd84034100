"""Weights as torch_npu's operators read them, and as a serving model keeps them (`contracts.hardware.PreparesWeights`).

Shapes: E experts, K inputs, N outputs, B = K / 2 bytes of packed int4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import Prepared, Weight
from arcforge_core.ops.quant import pack_int4, unpack_int4

COLUMNS, BITS, TURNED = "int4_columns", "scale_bits", "turned"
"""Names in `Kernel.layouts`: int4 packed along the outputs, scales as bits, matrices transposed."""
EXPERTS = {"gate_up": COLUMNS, "gate_up_scale_EFG": BITS, "down": COLUMNS, "down_scale_EDG": BITS}
PROLOGUE = {"q_a_QD": TURNED, "q_b_JQ": TURNED, "kv_a_CD": TURNED}
LINEAR = {"weight_NK": TURNED}
TURNED_LAYERS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa")
"""Layers that the prologue reads turned; all others are read as they are by some kernel."""


def int4_columns(packed_ENB: Tensor) -> tuple[Tensor, Tensor]:
    """Returns int4 experts as ``npu_grouped_matmul`` takes them, and what its bias is made of.

    The operator multiplies an int8 row as two int4, ``16 high + (low - 8) + 8``; the last term's product with a column
    is eight times the column's sum, which it takes as a bias.

    Args:
        packed_ENB: uint8 of `pack_int4`.

    Returns:
        int32 [E, K, N / 8] of eight columns each, and float32 sums of the columns' integers, [E, N].
    """
    values_EKN = unpack_int4(packed_ENB).mT.contiguous()
    return pack_int4(values_EKN).view(torch.int32), values_EKN.sum(1, dtype=torch.int32).float()


def scale_bits(scale_EN1: Tensor) -> tuple[Tensor, Tensor]:
    """Returns float32 scales as int64 bits [E, 1, N], and eight times the scales, [E, N]."""
    return scale_EN1.mT.contiguous().view(torch.int32).long(), 8 * scale_EN1[..., 0]


def turned(weight_NK: Tensor) -> Tensor:
    """Returns a transposed matrix, contiguous."""
    return weight_NK.mT.contiguous()


def prepare(weight: Weight, value: Tensor) -> Prepared | None:
    """Returns a weight in its layout; None if it has no place there, or if other kernels read it."""
    if weight.layout == COLUMNS:
        return int4_columns(value) if value.dtype == torch.uint8 else None
    if weight.layout == BITS:
        return scale_bits(value) if value.shape[-1] == 1 else None
    layer, _, parameter = weight.name.rpartition(".")
    other = parameter == "weight" and layer.rpartition(".")[2] not in TURNED_LAYERS
    return None if other else turned(value)


def restore(weight: Weight, prepared: Prepared) -> Tensor:
    """Returns the ordinary weight."""
    first = prepared if isinstance(prepared, Tensor) else prepared[0]
    if weight.layout == COLUMNS:
        return pack_int4(unpack_int4(first.view(torch.uint8)).mT.contiguous())
    if weight.layout == BITS:
        return first.int().view(torch.float32).mT.contiguous()
    return turned(first)
