"""Linear layers with integer weights in C++: few rows unpack weights in registers, many rows use whole products.

A product of many rows uses each weight often, so weights are dequantised once per call, or torch multiplies integers,
depending on the rounding of activations.

Shapes: T rows, K inputs, N outputs, G groups of inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.reference import check_one_scale
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.quantised import DTYPES, check_weight, served
from arcforge_hw.torch_ops import bf16_product
from arcforge_hw.torch_ops import quant_linear as torch_ops

BLOCK = 1 << 20
"""Weights dequantised at a time for many rows: this many fit in the cache."""
_function = native.by_dtype("quant_linear", "5p 7i")


def quant_linear(
    x: Tensor, weight: Tensor, scale_NG: Tensor, bias_N: Tensor | None = None, rounds: bool = True
) -> Tensor:
    """See `arcforge_core.ops.reference.quant_linear`."""
    inputs, (outputs, groups) = x.shape[-1], scale_NG.shape
    rows = x.numel() // inputs
    if not served(x, rows, (weight,), (scale_NG,), rounds) or (bias_N is not None and bias_N.dtype != x.dtype):
        return many_rows(x, weight, scale_NG, bias_N, rounds)
    bits = check_weight("weight", weight, outputs, inputs)
    weight, scale_NG = weight.contiguous(), scale_NG.contiguous()
    x, out = x.contiguous(), x.new_empty(*x.shape[:-1], outputs)
    if bias_N is not None:
        native.check_shape("bias_N", bias_N, outputs)
    (bias_at,) = (0,) if bias_N is None else native.pointers(bias_N)
    _function(x.dtype)(
        *native.pointers(x, weight, scale_NG), bias_at, out.data_ptr(), rows, inputs, outputs, groups, bits, rounds,
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def many_rows(x: Tensor, weight: Tensor, scale_NG: Tensor, bias_N: Tensor | None, rounds: bool) -> Tensor:
    """`quant_linear` where each weight is used often."""
    if not native.direct(x, scale_NG) or x.dtype not in DTYPES or scale_NG.dtype != torch.float32 or not x.numel():
        return torch_ops.quant_linear(x, weight, scale_NG, bias_N, rounds)
    bits = check_weight("weight", weight, len(scale_NG), x.shape[-1])
    weight, scale_NG = weight.contiguous(), scale_NG.contiguous()
    if not rounds:
        x_TK = x.flatten(0, -2)
        if bf16_product.wants_fp32(x_TK, scale_NG, len(x_TK)):
            x_TK = x_TK.float()
        out: Tensor = _wide_product(x_TK, weight, scale_NG, bits).to(x.dtype).unflatten(0, x.shape[:-1])
        return out if bias_N is None else out + bias_N
    check_one_scale(scale_NG)
    return torch_ops.quant_linear(x, unpacked(weight) if bits == 4 else weight, scale_NG, bias_N)


def _wide_product(x_TK: Tensor, weight: Tensor, scale_NG: Tensor, bits: int) -> Tensor:
    """Returns products with weights, dequantised in blocks that fit in the cache."""
    (rows, inputs), outputs = x_TK.shape, len(scale_NG)
    out_TN = x_TK.new_empty(rows, outputs)
    step = max(BLOCK // inputs, 1)
    scratch_NK = x_TK.new_empty(min(step, outputs), inputs)
    for first in range(0, outputs, step):
        part = slice(first, min(first + step, outputs))
        wide_NK = scratch_NK[: part.stop - first]
        widen(weight[part], scale_NG[part], bits, wide_NK)
        torch.mm(x_TK, wide_NK.mT, out=out_TN[:, part])
    return out_TN


def widen(weight: Tensor, scale_NG: Tensor, bits: int, out_NK: Tensor) -> None:
    """Writes `quant.dequantise` of a weight."""
    (outputs, inputs), groups = out_NK.shape, scale_NG.shape[1]
    name = f"arcforge_dequantise_{native.suffix(out_NK.dtype)}"
    run = native.function(
        name,
        "3p 5i",
    )
    run(*native.pointers(weight, scale_NG, out_NK), inputs, outputs, groups, bits, torch.get_num_threads())


def unpacked(weight: Tensor) -> Tensor:
    """Returns `quant.unpack_int4` of a weight."""
    out_NK = torch.empty(len(weight), 2 * weight.shape[1], dtype=torch.int8)
    run = native.function("arcforge_unpack_int4", "2p 2i")
    run(*native.pointers(weight, out_NK), weight.numel(), torch.get_num_threads())
    return out_NK
