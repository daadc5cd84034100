"""Products with integer weights: W8A8 by ``npu_quant_matmul``, experts of W8A8 and W4A8 by ``npu_grouped_matmul``.

Shapes: T rows, K inputs, N outputs, D hidden, E experts, F twice the expert width, G groups of inputs, R routed rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import YES, OpCall, Prepared, Verdict
from arcforge_hw.ascend import experts, layouts
from arcforge_hw.ascend.calls import matrices, npu

Weights = Prepared
"""An ordinary tensor, or the tensors of a layout of `layouts`."""
WIDEST, SWIGLU = 65535, 8192
"""Longest rows of a product, and of both halves of ``npu_swiglu_quant``."""


def supports(call: OpCall) -> Verdict:
    """Returns whether dtype and sizes are documented; packed int4 exists for experts alone."""
    if call.dtype != torch.bfloat16:
        return Verdict(False, f"int8 products give half precision, not {call.dtype}")
    sizes = call.sizes
    if call.op == "quant_linear" and (sizes.get("bits", 8), sizes.get("groups", 1)) != (8, 1):
        return Verdict(False, f"npu_quant_matmul takes int8 with one scale per output, not int{sizes['bits']}")
    if (width := max(sizes.values(), default=1)) > WIDEST:
        return Verdict(False, f"int8 products take rows of up to {WIDEST}, not {width}")
    if call.op in ("quant_linear", "quant_mlp"):
        return YES
    if sizes.get("hidden", 8) % 8 or sizes.get("width", 4) % 4:
        wanted = "hidden sizes in eights and expert widths in fours"
        return Verdict(False, f"packed int4 needs {wanted}, not {sizes['hidden']} and {sizes['width']}")
    return experts.supports(call)


def packs(call: OpCall) -> Verdict:
    """Returns whether a call's experts have a layout: int4 with one scale for each output."""
    if (call.sizes.get("bits", 4), call.sizes.get("groups", 1)) != (4, 1):
        return Verdict(False, "only int4 experts with one scale for each output have a layout")
    return YES


def only_rounded(rounds: bool) -> Verdict:
    """Returns whether activations are rounded; weight-only int4 in groups needs dequantised weights."""
    return YES if rounds else Verdict(False, "int8 products round activations")


def quant_linear(
    x: Tensor, weight: Tensor, scale_NG: Tensor, bias_N: Tensor | None = None, rounds: bool = True
) -> Tensor:
    """See `arcforge_core.ops.reference.quant_linear`."""
    q_TK, scale_T = npu("npu_dynamic_quant")(x.flatten(0, -2))
    out: Tensor = _product(q_TK, scale_T, weight, scale_NG, x.dtype, bias_N).unflatten(0, x.shape[:-1])
    return out


def _product(
    q_TK: Tensor, scale_T: Tensor, weight_NK: Tensor, scale_NG: Tensor, dtype: torch.dtype, bias_N: Tensor | None = None
) -> Tensor:
    out_TN: Tensor = npu("npu_quant_matmul")(
        q_TK,
        matrices(weight_NK.mT),
        scale_NG[:, 0].contiguous(),
        pertoken_scale=scale_T,
        bias=bias_N,
        output_dtype=dtype,
    )
    return out_TN


def _swiglu(gate_up_TF: Tensor) -> tuple[Tensor, Tensor]:
    """Returns SwiGLU's rows as int8, and their scales; the gate is the left half."""
    if gate_up_TF.shape[-1] <= SWIGLU:
        q, scale = npu("npu_swiglu_quant")(gate_up_TF, activate_left=True, quant_mode=1)
    else:
        q, scale = npu("npu_dynamic_quant")(npu("npu_swiglu")(gate_up_TF, -1))
    return q, scale


def quant_mlp(
    x_TD: Tensor, gate: Tensor, gate_scale_FG: Tensor, up: Tensor, up_scale_FG: Tensor, down: Tensor,
    down_scale_DG: Tensor, rounds: bool = True,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.quant_mlp`; the tokens are rounded once for both products."""
    q_TD, scale_T = npu("npu_dynamic_quant")(x_TD)
    weights = ((gate, gate_scale_FG), (up, up_scale_FG))
    gate_up_TF = torch.cat([_product(q_TD, scale_T, w, s, x_TD.dtype) for w, s in weights], -1)
    return _product(*_swiglu(gate_up_TF), down, down_scale_DG, x_TD.dtype)


def quant_experts(
    x_TD: Tensor, gate_up: Weights, gate_up_scale_EFG: Weights, down: Weights, down_scale_EDG: Weights,
    expert_TK: Tensor, gate_TK: Tensor, rounds: bool = True,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.quant_experts`; weights are ordinary or in `layouts.EXPERTS`."""
    count = len(gate_up if isinstance(gate_up, Tensor) else gate_up[0])
    q_RD, place_R, counts_E, scale_R = experts.routed(x_TD, expert_TK, count, 1)
    inner_RF = _groups(q_RD, scale_R, gate_up, gate_up_scale_EFG, counts_E, x_TD.dtype)
    out_RD = _groups(*_swiglu(inner_RF), down, down_scale_EDG, counts_E, x_TD.dtype)
    out_TD: Tensor = npu("npu_moe_token_unpermute")(out_RD, place_R, gate_TK.to(out_RD.dtype))
    return out_TD


def quant_moe(
    x_TD: Tensor, router_ED: Tensor, bias_E: Tensor, gate_up: Weights, gate_up_scale_EFG: Weights, down: Weights,
    down_scale_EDG: Weights, shared_gate: Tensor, shared_gate_scale_FG: Tensor, shared_up: Tensor,
    shared_up_scale_FG: Tensor, shared_down: Tensor, shared_down_scale_DG: Tensor, chosen: int, scale: float,
    rounds: bool = True,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.quant_moe`; the routed experts are as in `quant_experts`."""
    expert_TK, gate_TK = experts.choose(x_TD, router_ED, bias_E, chosen, scale)
    weights = (gate_up, gate_up_scale_EFG, down, down_scale_EDG)
    shared = (shared_gate, shared_gate_scale_FG, shared_up, shared_up_scale_FG, shared_down, shared_down_scale_DG)
    return quant_experts(x_TD, *weights, expert_TK, gate_TK) + quant_mlp(x_TD, *shared)


def _groups(
    q_RK: Tensor, scale_R: Tensor, weight: Weights, scale: Weights, counts_E: Tensor, dtype: torch.dtype
) -> Tensor:
    """Returns the rows of each expert times its integers, [R, N]."""
    if isinstance(weight, Tensor) and isinstance(scale, Tensor) and weight.dtype == torch.int8:
        factor_EN = scale[..., 0].to(dtype)  # the only dtype that is documented for this result
        given, columns = {"scale": [factor_EN]}, matrices(weight.mT)
    else:
        columns, sums_EN = layouts.int4_columns(weight) if isinstance(weight, Tensor) else weight
        bits, eightfold_EN = layouts.scale_bits(scale) if isinstance(scale, Tensor) else scale
        given = {"scale": [bits], "bias": [sums_EN * eightfold_EN]}
    out_RN: Tensor = npu("npu_grouped_matmul")(
        [q_RK], [columns], **given, per_token_scale=[scale_R], group_list=counts_E, split_item=3, group_type=0,
        group_list_type=1, output_dtype=dtype,
    )[0]  # fmt: skip
    return out_RN
