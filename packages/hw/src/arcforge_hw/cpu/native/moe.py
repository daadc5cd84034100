"""A mixture of experts in one call of C++. Shapes: T tokens, D hidden, E experts, F expert width."""

from __future__ import annotations

from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.fused import served

_function = native.by_dtype("moe", "9p 6i d i")


def moe(
    x_TD: Tensor, router_ED: Tensor, bias_E: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, shared_gate_FD: Tensor,
    shared_up_FD: Tensor, shared_down_DF: Tensor, chosen: int, scale: float,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.moe`; reads only the chosen experts."""
    (tokens, hidden), (experts, _, width), shared = x_TD.shape, down_EDF.shape, len(shared_gate_FD)
    weights = (gate_up_EFD, down_EDF, shared_gate_FD, shared_up_FD, shared_down_DF)
    if not served(x_TD, hidden, width, shared):
        return reference.moe(x_TD, router_ED, bias_E, *weights, chosen, scale)
    native.check_dtypes(x_TD, router_ED, *weights)
    native.check_shape("router_ED", router_ED, experts, hidden)
    native.check_shape("bias_E", bias_E, experts)
    native.check_shape("gate_up_EFD", gate_up_EFD, experts, 2 * width, hidden)
    native.check_shape("down_EDF", down_EDF, experts, hidden, width)
    native.check_shape("shared_gate_FD", shared_gate_FD, shared, hidden)
    native.check_shape("shared_up_FD", shared_up_FD, shared, hidden)
    native.check_shape("shared_down_DF", shared_down_DF, hidden, shared)
    if not 0 < chosen <= experts:
        raise ValueError(f"chosen={chosen}: must be from 1 to {experts}")
    given = (x_TD, router_ED, bias_E.float(), *weights)
    return native.output(_function, given, tokens, hidden, experts, chosen, width, shared, scale)
