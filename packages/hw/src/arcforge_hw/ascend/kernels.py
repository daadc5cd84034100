"""Ascend's kernels: our ops, the operators of torch_npu that compute them, and the sizes that are documented."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import YES, Kernel, OpCall, Verdict
from arcforge_core.ops import reference
from arcforge_hw.ascend import (
    attention_varlen,
    experts,
    indexer_kl,
    indexer_topk,
    layouts,
    mla_project,
    quantised,
    rows,
    sparse_mla,
)
from arcforge_hw.torch_ops.verdicts import Answer, first_no

FUSED = 10
"""Priority over the kernels made of torch's operators."""


def _any(call: OpCall) -> Verdict:
    return YES


def _selects(rounds_queries: bool) -> Callable[..., Verdict]:
    def limits(
        q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool = True,
        pages: Any = None,
    ) -> Verdict:  # fmt: skip
        return indexer_topk.limits(rounds_queries, use_relu, not k_SD.is_floating_point(), topk)

    return limits


def _rounds(place: int, *int8_places: int) -> Callable[..., Verdict]:
    """Returns limits of an op whose argument number `place` is ``rounds``, and some of whose weights must be int8."""

    def limits(*args: Any, rounds: bool = True) -> Verdict:
        answer = quantised.only_rounded(args[place] if len(args) > place else rounds)
        if answer.ok and any(args[number].dtype != torch.int8 for number in int8_places):
            return Verdict(False, "npu_quant_matmul takes int8 weights; packed int4 exists for experts alone")
        return answer

    return limits


def kernels(supported: Answer, rounds_queries: bool, prologue: str) -> list[Kernel]:
    """Returns the kernels.

    Args:
        supported: whether the chip has a call's device and dtype.
        rounds_queries: whether keys in int8 may be selected by ``npu_quant_lightning_indexer``.
        prologue: ``off``, or the documents of ``npu_mla_prolog_v3`` whose sizes it takes.
    """
    table: list[tuple[Callable[..., Any], str, Answer, Callable[..., Verdict] | None]] = [
        (rows.rms_norm, "npu_rms_norm", _any, None),
        (rows.rope, "npu_rotary_mul", rows.rope_fits, rows.rope_limits),
        (rows.swiglu, "npu_swiglu", _any, None),
        (attention_varlen.attention_varlen, "npu_fusion_attention", attention_varlen.supports, attention_varlen.limits),
        (
            attention_varlen.attention_decode,
            "npu_fusion_attention",
            attention_varlen.supports,
            attention_varlen.decode_limits,
        ),
        (sparse_mla.mla_decode, "npu_sparse_flash_attention", sparse_mla.supports, sparse_mla.decode_limits),
        (indexer_topk.indexer_topk, "npu_lightning_indexer", indexer_topk.supports, _selects(rounds_queries)),
        (sparse_mla.sparse_mla, "npu_sparse_flash_attention", sparse_mla.supports, None),
        (indexer_kl.indexer_kl, "npu_sparse_lightning_indexer_grad_kl_loss", indexer_kl.supports, indexer_kl.limits),
        (experts.moe_experts, "npu_grouped_matmul", experts.supports, None),
        (experts.moe, "npu_moe_gating_top_k", experts.routes, None),
        (quantised.quant_linear, "npu_quant_matmul", quantised.supports, _rounds(4, 1)),
        (quantised.quant_mlp, "npu_swiglu_quant", quantised.supports, _rounds(7, 1, 3, 5)),
        (quantised.quant_experts, "npu_grouped_matmul", quantised.supports, _rounds(7)),
        (
            quantised.quant_moe,
            "npu_moe_gating_top_k",
            first_no(experts.routes, quantised.supports),
            _rounds(15, 7, 9, 11),
        ),
    ]
    if prologue != "off":
        table += [
            (mla_project.mla_project, "npu_mla_prolog_v3", mla_project.supports(prologue), None),
            (reference.mla_epilog, "torch", _any, None),  # without it a model would not use the one before
        ]
    return [
        *(
            Kernel(fn.__name__, f"ascend.{fn.__name__}.{name}", fn, first_no(supported, fits), FUSED, limits=limits)
            for fn, name, fits, limits in table
        ),
        *_with_layouts(supported, prologue),
    ]


def _with_layouts(supported: Answer, prologue: str) -> list[Kernel]:
    """Returns the kernels that take weights in `layouts`, so that they are packed and turned once."""
    products, packs = quantised.supports, quantised.packs
    table: list[tuple[str, Callable[..., Any], Answer, Callable[..., Verdict] | None, dict[str, str]]] = [
        ("quant_experts", quantised.quant_experts, first_no(products, packs), _rounds(7), layouts.EXPERTS),
        (
            "quant_moe",
            quantised.quant_moe,
            first_no(experts.routes, products, packs),
            _rounds(15, 7, 9, 11),
            layouts.EXPERTS,
        ),
    ]
    if prologue != "off":  # its weights are also read by prompts, as plain products
        table += [
            ("mla_project", mla_project.projected, mla_project.supports(prologue), None, layouts.PROLOGUE),
            ("linear", rows.turned_linear, rows.forward_only, None, layouts.LINEAR),
        ]
    return [
        Kernel(op, f"ascend.{op}.layouts", fn, first_no(supported, fits), FUSED, limits=limits, layouts=taken)
        for op, fn, fits, limits, taken in table
    ]
