"""A mixture of experts with integer weights in one C++ call.

Shapes: T tokens, D hidden, E experts, F width, G groups of inputs.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.quantised import check_weight, served

_function = native.by_dtype("quant_moe", "14p 13i d i")


def quant_moe(
    x_TD: Tensor, router_ED: Tensor, bias_E: Tensor, gate_up: Tensor, gate_up_scale_EFG: Tensor, down: Tensor,
    down_scale_EDG: Tensor, shared_gate: Tensor, shared_gate_scale_FG: Tensor, shared_up: Tensor,
    shared_up_scale_FG: Tensor, shared_down: Tensor, shared_down_scale_DG: Tensor, chosen: int, scale: float,
    rounds: bool = True,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.quant_moe`; reads only the chosen experts."""
    (tokens, hidden), (experts, twice, groups) = x_TD.shape, gate_up_scale_EFG.shape
    width, inner_groups = twice // 2, down_scale_EDG.shape[2]
    routed = (gate_up, gate_up_scale_EFG, down, down_scale_EDG)
    common = (shared_gate, shared_gate_scale_FG, shared_up, shared_up_scale_FG, shared_down, shared_down_scale_DG)
    few = all(served(x_TD, tokens, part[::2], part[1::2], rounds) for part in (routed, common))
    if not few or not native.whole_vectors(hidden, x_TD.dtype):
        return reference.quant_moe(x_TD, router_ED, bias_E, *routed, *common, chosen, scale, rounds)
    bits = check_weight("gate_up", gate_up, twice, hidden)
    check_weight("down", down, hidden, width)
    native.check_dtypes(x_TD, router_ED)
    native.check_shape("router_ED", router_ED, experts, hidden)
    native.check_shape("bias_E", bias_E, experts)
    native.check_shape("down_scale_EDG", down_scale_EDG, experts, hidden, inner_groups)
    if len(gate_up) != experts or len(down) != experts:
        raise ValueError(f"weights of {len(gate_up)} and {len(down)} experts: must be of {experts}, as the scales")
    if not 0 < chosen <= experts:
        raise ValueError(f"chosen={chosen}: must be from 1 to {experts}")
    shared, shared_groups = shared_gate_scale_FG.shape
    shared_bits = check_weight("shared_gate", shared_gate, shared, hidden)
    check_weight("shared_up", shared_up, shared, hidden)
    check_weight("shared_down", shared_down, hidden, shared)
    native.check_shape("shared_up_scale_FG", shared_up_scale_FG, shared, shared_groups)
    native.check_shape("shared_down_scale_DG", shared_down_scale_DG, hidden, shared_down_scale_DG.shape[1])
    return native.output(
        _function, (x_TD, router_ED, bias_E.float(), *routed, *common),
        tokens, hidden, experts, chosen, width, shared, groups, inner_groups, bits, shared_groups,
        shared_down_scale_DG.shape[1], shared_bits, rounds, scale,
    )  # fmt: skip
