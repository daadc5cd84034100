"""Norm, rotation and SwiGLU. Shapes: T tokens, H heads, R rotated width, F = R / 2."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import YES, OpCall, Verdict
from arcforge_hw.ascend.calls import npu


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `arcforge_core.ops.reference.rms_norm`; rounded once, after the weight."""
    normed: Tensor = npu("npu_rms_norm")(x, weight.to(x.dtype), eps)[0]
    return normed


def rope(x_THR: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.rope`; in float32, because tables in bfloat16 lose a long context's angles."""
    cos_T1R, sin_T1R = (table.repeat_interleave(2, -1)[:, None] for table in (cos_TF, sin_TF))
    turned: Tensor = npu("npu_rotary_mul")(x_THR.float(), cos_T1R, sin_T1R, "interleave")
    return turned.to(x_THR.dtype)


def turned_linear(x: Tensor, weight_KN: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """See `arcforge_core.ops.reference.linear`, for a weight in `layouts.TURNED`."""
    out = x @ weight_KN
    return out if bias_N is None else out + bias_N


def forward_only(call: OpCall) -> Verdict:
    """Refuses calls with gradients."""
    return Verdict(False, "weights in a layout have no gradients") if call.needs_grad else YES


def rope_fits(call: OpCall) -> Verdict:
    """Returns whether the rotated width is documented for interleaved pairs."""
    width = call.sizes.get("dim", 64)
    return YES if width < 896 else Verdict(False, f"npu_rotary_mul takes less than 896 values, not {width}")


def rope_limits(x_THR: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Verdict:
    """Returns whether the heads are documented."""
    if x_THR.shape[1] < 1000:
        return YES
    return Verdict(False, f"npu_rotary_mul takes less than 1000 heads, not {x_THR.shape[1]}")


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.swiglu`; the operator takes both halves in one tensor."""
    out: Tensor = npu("npu_swiglu")(torch.cat((gate, up), -1), -1)
    return out
