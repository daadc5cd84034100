"""The kernels made of torch's operators, for any backend."""

from __future__ import annotations

from collections.abc import Callable

from arcforge_core.contracts.hardware import Kernel, OpCall, Verdict
from arcforge_hw.torch_ops.gated_delta_rule import gated_delta_rule
from arcforge_hw.torch_ops.hadamard import hadamard
from arcforge_hw.torch_ops.head_linear import head_linear
from arcforge_hw.torch_ops.indexer_kl import indexer_kl
from arcforge_hw.torch_ops.indexer_topk import indexer_topk
from arcforge_hw.torch_ops.linear_cross_entropy import linear_cross_entropy
from arcforge_hw.torch_ops.moe_experts import moe_experts
from arcforge_hw.torch_ops.newton_schulz import newton_schulz
from arcforge_hw.torch_ops.quant_linear import quant_linear
from arcforge_hw.torch_ops.selected_attention import selected_attention
from arcforge_hw.torch_ops.sparse_mla import sparse_mla
from arcforge_hw.torch_ops.verdicts import fewer_on_gram, first_no, grouped_mm
from arcforge_hw.torch_ops.window_attention import window_attention

METHODS: dict[Callable[..., object], str] = {
    gated_delta_rule: "chunks",
    hadamard: "butterfly",
    head_linear: "bmm",
    indexer_kl: "blocks",
    indexer_topk: "blocks",
    linear_cross_entropy: "chunked",
    moe_experts: "grouped_mm",
    newton_schulz: "gram",
    quant_linear: "int_mm",
    selected_attention: "tiles",
    sparse_mla: "blocks",
    window_attention: "blocks",
}
"""Each function and the last part of its kernel's name; the function's name is the op."""
CONDITIONS = {"moe_experts": grouped_mm, "newton_schulz": fewer_on_gram}
"""Conditions of an op on every device."""


def kernels(backend: str, supports: Callable[[OpCall], Verdict]) -> list[Kernel]:
    """Returns the kernels of a backend, named ``{backend}.{op}.{method}``.

    Args:
        backend: the backend's name.
        supports: whether the backend supports a call's device and dtypes.
    """
    made = []
    for fn, method in METHODS.items():
        op = fn.__name__
        answer = first_no(CONDITIONS[op], supports) if op in CONDITIONS else supports
        made.append(Kernel(op, f"{backend}.{op}.{method}", fn, answer))
    return made
