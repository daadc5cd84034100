"""Layers of quantised weights in C++: few rows with weights that are unpacked in registers, many with whole products.

A product of many rows uses each weight often: there weights are made wide once per call, or integers are multiplied by
torch, whichever the kind of rounding asks for.

Shapes: T rows, K inputs, N outputs, G groups of inputs, D hidden, E experts, f expert width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.ops import quant_reference
from arcforge_core.ops.quant_reference import check_one_scale
from arcforge_hw.cpu.native import (
    POINTER,
    REAL,
    SIZE,
    check_dtypes,
    check_shape,
    direct,
    function,
    pointers,
    suffix,
    whole_vectors,
)
from arcforge_hw.torch_ops import quant_linear as torch_ops

LINEAR = (*[POINTER] * 5, *[SIZE] * 7)
MLP = (*[POINTER] * 8, *[SIZE] * 8)
EXPERTS = (*[POINTER] * 8, *[SIZE] * 9)
MOE = (*[POINTER] * 14, *[SIZE] * 13, REAL, SIZE)
DTYPES = (torch.float32, torch.bfloat16)
FEW_ROWS = 16
"""Rows up to which weights are unpacked in registers; whole products win beyond."""
BLOCK = 1 << 20
"""Weights that are made wide at a time for many rows: a head as a whole would not stay near, nor be small."""
LEAST_GROUP = 32
"""Columns of a group at least: what is unpacked at a time has one scale."""


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Callable[..., None]:
    arguments = {"quant_linear": LINEAR, "quant_mlp": MLP, "quant_experts": EXPERTS, "quant_moe": MOE}[name]
    return function(f"arcforge_{name}_{suffix(dtype)}", arguments)


def _served(x: Tensor, rows: int, weights: tuple[Tensor, ...], scales: tuple[Tensor, ...], rounds: bool) -> bool:
    """Whether C++ takes these: few rows, nothing traced or differentiated, sums as `quant.h` makes them."""
    inputs = [weight.shape[-1] * (1 if weight.dtype == torch.int8 else 2) for weight in weights]
    groups = [scale.shape[-1] for scale in scales]
    if rounds:
        shaped = all(group == 1 for group in groups)
    else:
        shaped = all(weight.dtype == torch.uint8 for weight in weights)
        shaped = shaped and all(k % g == 0 and _steps(k // g, g) for k, g in zip(inputs, groups, strict=True))
    alike = all(weight.dtype == weights[0].dtype for weight in weights)
    wide = all(scale.dtype == torch.float32 for scale in scales)
    return 0 < rows <= FEW_ROWS and x.dtype in DTYPES and shaped and alike and wide and direct(x, *scales)


def _steps(group: int, groups: int) -> bool:
    """Whether groups are whole steps of 128 columns, quarters of them, or one."""
    return group == LEAST_GROUP or group % 128 == 0 or (groups == 1 and group % LEAST_GROUP == 0)


def quant_linear(
    x: Tensor, weight: Tensor, scale_NG: Tensor, bias_N: Tensor | None = None, rounds: bool = True
) -> Tensor:
    """See `arcforge_core.ops.quant_reference.quant_linear`."""
    inputs, (outputs, groups) = x.shape[-1], scale_NG.shape
    rows = x.numel() // inputs
    if not _served(x, rows, (weight,), (scale_NG,), rounds) or (bias_N is not None and bias_N.dtype != x.dtype):
        return many_rows(x, weight, scale_NG, bias_N, rounds)
    bits = _check("weight", weight, outputs, inputs)
    weight, scale_NG = weight.contiguous(), scale_NG.contiguous()
    x, out = x.contiguous(), x.new_empty(*x.shape[:-1], outputs)
    if bias_N is not None:
        check_shape("bias_N", bias_N, outputs)
    (bias_at,) = (0,) if bias_N is None else pointers(bias_N)
    _function("quant_linear", x.dtype)(
        *pointers(x, weight, scale_NG), bias_at, out.data_ptr(), rows, inputs, outputs, groups, bits, rounds,
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def _check(name: str, weight: Tensor, outputs: int, inputs: int) -> int:
    """Returns the bits of a weight of these sizes; raises `ValueError` where it is none."""
    bits = {torch.int8: 8, torch.uint8: 4}.get(weight.dtype)
    if bits is None or weight.shape[-2:] != (outputs, inputs * bits // 8) or (bits == 4 and inputs % 2):
        accepted = f"int8 [{outputs}, {inputs}] or packed int4, uint8 [{outputs}, {inputs} / 2]"
        raise ValueError(f"{name} must be {accepted}, not {weight.dtype} {list(weight.shape)}")
    return bits


def many_rows(x: Tensor, weight: Tensor, scale_NG: Tensor, bias_N: Tensor | None, rounds: bool) -> Tensor:
    """`quant_linear` where each weight is used often."""
    if not direct(x, scale_NG) or x.dtype not in DTYPES or scale_NG.dtype != torch.float32 or not x.numel():
        return torch_ops.quant_linear(x, weight, scale_NG, bias_N, rounds)
    bits = _check("weight", weight, len(scale_NG), x.shape[-1])
    weight, scale_NG = weight.contiguous(), scale_NG.contiguous()
    if not rounds:
        out: Tensor = _wide_product(x.flatten(0, -2), weight, scale_NG, bits).unflatten(0, x.shape[:-1])
        return out if bias_N is None else out + bias_N
    check_one_scale(scale_NG)
    return torch_ops.quant_linear(x, unpacked(weight) if bits == 4 else weight, scale_NG, bias_N)


def _wide_product(x_TK: Tensor, weight: Tensor, scale_NG: Tensor, bits: int) -> Tensor:
    """Returns products with weights that are made wide as many at a time as stay near."""
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
    name = f"arcforge_dequantise_{suffix(out_NK.dtype)}"
    run = function(name, (POINTER, POINTER, POINTER, SIZE, SIZE, SIZE, SIZE, SIZE))
    run(*pointers(weight, scale_NG, out_NK), inputs, outputs, groups, bits, torch.get_num_threads())


def unpacked(weight: Tensor) -> Tensor:
    """Returns `quant.unpack_int4` of a weight."""
    out_NK = torch.empty(len(weight), 2 * weight.shape[1], dtype=torch.int8)
    run = function("arcforge_unpack_int4", (POINTER, POINTER, SIZE, SIZE))
    run(*pointers(weight, out_NK), weight.numel(), torch.get_num_threads())
    return out_NK


def quant_mlp(
    x_TD: Tensor,
    gate: Tensor,
    gate_scale_FG: Tensor,
    up: Tensor,
    up_scale_FG: Tensor,
    down: Tensor,
    down_scale_DG: Tensor,
    rounds: bool = True,
) -> Tensor:
    """See `arcforge_core.ops.quant_reference.quant_mlp`."""
    (tokens, hidden), width = x_TD.shape, len(gate_scale_FG)
    scales = gate_scale_FG, up_scale_FG, down_scale_DG
    if not _served(x_TD, tokens, (gate, up, down), scales, rounds):
        inner = (quant_linear(x_TD, w, s, None, rounds) for w, s in ((gate, gate_scale_FG), (up, up_scale_FG)))
        return quant_linear(_swiglu(*inner), down, down_scale_DG, None, rounds)
    bits = _check("gate", gate, width, hidden)
    _check("up", up, width, hidden)
    _check("down", down, hidden, width)
    groups, inner_groups = gate_scale_FG.shape[1], down_scale_DG.shape[1]
    check_shape("up_scale_FG", up_scale_FG, width, groups)
    check_shape("down_scale_DG", down_scale_DG, hidden, inner_groups)
    given = (x_TD, gate, gate_scale_FG, up, up_scale_FG, down, down_scale_DG)
    tensors = [x.contiguous() for x in given]
    out_TD = torch.empty_like(tensors[0])
    _function("quant_mlp", x_TD.dtype)(
        *pointers(*tensors, out_TD), tokens, hidden, width, groups, inner_groups, bits, rounds,
        torch.get_num_threads(),
    )  # fmt: skip
    return out_TD


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def quant_experts(
    x_TD: Tensor,
    gate_up: Tensor,
    gate_up_scale_EFG: Tensor,
    down: Tensor,
    down_scale_EDG: Tensor,
    expert_TK: Tensor,
    gate_TK: Tensor,
    rounds: bool = True,
) -> Tensor:
    """See `arcforge_core.ops.quant_reference.quant_experts`; reads only the experts that are chosen."""
    (tokens, hidden), (experts, twice, groups) = x_TD.shape, gate_up_scale_EFG.shape
    chosen, inner_groups, width = expert_TK.shape[1], down_scale_EDG.shape[2], twice // 2
    lowest, highest = torch.aminmax(expert_TK) if expert_TK.numel() else (0, 0)
    if int(lowest) < 0 or int(highest) >= experts:
        raise ValueError(f"expert numbers must be from 0 to {experts - 1}, got {int(lowest)} to {int(highest)}")
    served = _served(x_TD, tokens, (gate_up, down), (gate_up_scale_EFG, down_scale_EDG), rounds)
    if not served or tokens * chosen > experts:
        return torch_ops.each_expert(
            x_TD, gate_up, gate_up_scale_EFG, down, down_scale_EDG, expert_TK, gate_TK,
            functools.partial(quant_linear, bias_N=None, rounds=rounds),
        )  # fmt: skip
    bits = _check("gate_up", gate_up, twice, hidden)
    _check("down", down, hidden, width)
    check_shape("down_scale_EDG", down_scale_EDG, experts, hidden, inner_groups)
    check_shape("gate_TK", gate_TK, tokens, chosen)
    if len(gate_up) != experts or len(down) != experts:
        raise ValueError(f"scales of {experts} experts beside weights of {len(gate_up)} and {len(down)}")
    given = (x_TD, gate_up, gate_up_scale_EFG, down, down_scale_EDG, expert_TK.long(), gate_TK.float())
    tensors = [x.contiguous() for x in given]
    out_TD = torch.empty_like(tensors[0])
    _function("quant_experts", x_TD.dtype)(
        *pointers(*tensors, out_TD), tokens, chosen, hidden, width, groups, inner_groups, bits, rounds,
        torch.get_num_threads(),
    )  # fmt: skip
    return out_TD


def quant_moe(
    x_TD: Tensor,
    router_ED: Tensor,
    bias_E: Tensor,
    gate_up: Tensor,
    gate_up_scale_EFG: Tensor,
    down: Tensor,
    down_scale_EDG: Tensor,
    shared_gate: Tensor,
    shared_gate_scale_FG: Tensor,
    shared_up: Tensor,
    shared_up_scale_FG: Tensor,
    shared_down: Tensor,
    shared_down_scale_DG: Tensor,
    chosen: int,
    scale: float,
    rounds: bool = True,
) -> Tensor:
    """See `arcforge_core.ops.quant_reference.quant_moe`; reads only the experts that are chosen."""
    (tokens, hidden), (experts, twice, groups) = x_TD.shape, gate_up_scale_EFG.shape
    width, inner_groups = twice // 2, down_scale_EDG.shape[2]
    routed = (gate_up, gate_up_scale_EFG, down, down_scale_EDG)
    common = (shared_gate, shared_gate_scale_FG, shared_up, shared_up_scale_FG, shared_down, shared_down_scale_DG)
    served = all(_served(x_TD, tokens, part[::2], part[1::2], rounds) for part in (routed, common))
    if not served or not whole_vectors(hidden, x_TD.dtype):
        return quant_reference.quant_moe(x_TD, router_ED, bias_E, *routed, *common, chosen, scale, rounds)
    bits = _check("gate_up", gate_up, twice, hidden)
    _check("down", down, hidden, width)
    check_dtypes(x_TD, router_ED)
    check_shape("router_ED", router_ED, experts, hidden)
    check_shape("bias_E", bias_E, experts)
    check_shape("down_scale_EDG", down_scale_EDG, experts, hidden, inner_groups)
    if len(gate_up) != experts or len(down) != experts:
        raise ValueError(f"scales of {experts} experts beside weights of {len(gate_up)} and {len(down)}")
    if not 0 < chosen <= experts:
        raise ValueError(f"chosen must be from 1 to {experts} experts, not {chosen}")
    shared, shared_groups = shared_gate_scale_FG.shape
    shared_bits = _check("shared_gate", shared_gate, shared, hidden)
    _check("shared_up", shared_up, shared, hidden)
    _check("shared_down", shared_down, hidden, shared)
    check_shape("shared_up_scale_FG", shared_up_scale_FG, shared, shared_groups)
    check_shape("shared_down_scale_DG", shared_down_scale_DG, hidden, shared_down_scale_DG.shape[1])
    tensors = [x.contiguous() for x in (x_TD, router_ED, bias_E.float(), *routed, *common)]
    out_TD = torch.empty_like(tensors[0])
    _function("quant_moe", x_TD.dtype)(
        *pointers(*tensors, out_TD), tokens, hidden, experts, chosen, width, shared, groups, inner_groups, bits,
        shared_groups, shared_down_scale_DG.shape[1], shared_bits, rounds, scale, torch.get_num_threads(),
    )  # fmt: skip
    return out_TD
