"""The operators that the kernels of ``hardware=ascend`` call, and those that have gradients.

An operator that nothing here calls is not declared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arcforge_core.testing.fake_chip.device import Chip, Limits, install
from arcforge_core.testing.fake_chip.npu import attention, dense, products, prolog, routing, rows, training
from arcforge_core.testing.fake_chip.npu.schemas import SCHEMAS
from arcforge_core.testing.fake_chip.vendor import Backward, VendorOp, declare, extension

MODULES = (rows, products, routing, attention, dense, training, prolog)
"""A function of an operator has its name without ``npu_`` and, in `routing`, ``moe_``."""
GRADIENTS: dict[str, Backward] = {
    "npu_rms_norm": rows.rms_norm_gradients,
    "npu_rotary_mul": rows.rotary_mul_gradients,
    "npu_swiglu": rows.swiglu_gradients,
    "npu_moe_token_permute": routing.token_permute_gradients,
    "npu_moe_token_unpermute": routing.token_unpermute_gradients,
    "npu_fusion_attention": dense.fusion_attention_gradients,
    "npu_sparse_flash_attention": attention.sparse_flash_attention_gradients,
}
"""As torch_npu registers them with autograd."""


def install_npu(limits: Limits | None = None) -> Chip:
    """Makes this process one with an Ascend NPU: device type, operators and an empty module ``torch_npu``."""
    install("npu", limits)
    extension("torch_npu")
    names = [schema.partition("(")[0] for schema in SCHEMAS]
    ops = [VendorOp(s, function_of(n), GRADIENTS.get(n)) for s, n in zip(SCHEMAS, names, strict=True)]
    return declare("npu", ops)


def function_of(name: str) -> Callable[..., Any]:
    """Returns the stand-in of an operator."""
    short = name.removeprefix("npu_").removeprefix("moe_")
    function: Callable[..., Any] = next(getattr(m, short) for m in MODULES if hasattr(m, short))
    return function
