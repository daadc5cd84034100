"""The CPU backend: kernels that torch's operators do not provide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import Kernel, OpCall, Probe, Verdict
from arcforge_core.ops.cxx import missing_cxx
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.ops.processor import allowed_cores
from arcforge_hw.cpu import attention_varlen as tiled_attention
from arcforge_hw.cpu import mla_decode as tiled_mla
from arcforge_hw.cpu import rms_norm as tiled_norm
from arcforge_hw.cpu.native import DIRECT, FEW_ROWS, QUANT_ROWS, library, whole_vectors
from arcforge_hw.cpu.native import explained as pairs
from arcforge_hw.cpu.native.argmax_logprob import argmax_logprob
from arcforge_hw.cpu.native.attention_decode import attention_decode
from arcforge_hw.cpu.native.attention_varlen import attention_varlen, selected_attention
from arcforge_hw.cpu.native.hadamard import hadamard
from arcforge_hw.cpu.native.index_prolog import index_prolog
from arcforge_hw.cpu.native.indexer_kl import indexer_kl
from arcforge_hw.cpu.native.indexer_topk import indexer_topk
from arcforge_hw.cpu.native.linear import linear
from arcforge_hw.cpu.native.linear_cross_entropy import linear_cross_entropy
from arcforge_hw.cpu.native.mla_absorb import mla_absorb
from arcforge_hw.cpu.native.mla_decode import mla_decode
from arcforge_hw.cpu.native.mla_epilog import mla_epilog
from arcforge_hw.cpu.native.mla_prolog import mla_prolog
from arcforge_hw.cpu.native.mlp import mlp
from arcforge_hw.cpu.native.moe import moe
from arcforge_hw.cpu.native.moe_experts import moe_experts
from arcforge_hw.cpu.native.quant_experts import quant_experts
from arcforge_hw.cpu.native.quant_linear import quant_linear
from arcforge_hw.cpu.native.quant_mlp import quant_mlp
from arcforge_hw.cpu.native.quant_moe import quant_moe
from arcforge_hw.cpu.native.record import record
from arcforge_hw.cpu.native.rms_norm import rms_norm
from arcforge_hw.cpu.native.rope import rope
from arcforge_hw.cpu.native.sample import sample
from arcforge_hw.cpu.native.sparse_mla import sparse_mla
from arcforge_hw.cpu.native.swiglu import swiglu
from arcforge_hw.cpu.native.to_records import to_records
from arcforge_hw.torch_ops import bf16_product, int8_product
from arcforge_hw.torch_ops.expert_rows import explained
from arcforge_hw.torch_ops.kernels import kernels as torch_kernels
from arcforge_hw.torch_ops.moe_experts import grouped_experts
from arcforge_hw.torch_ops.quant_linear import quant_experts as int_mm_experts
from arcforge_hw.torch_ops.verdicts import first_no, grouped_mm, on_device

_on_cpu = on_device("cpu", "slow on CPUs and untested here")


def _native(call: OpCall) -> Verdict:
    verdict = _on_cpu(call)
    return library().verdict() if verdict.ok else verdict


def _fused(call: OpCall) -> Verdict:
    if call.needs_grad:
        return Verdict(False, "fused ops have no gradients")
    verdict = _native(call)
    for name in ("hidden", "query", "latent", "inner", "width", "shared") if verdict.ok else ():
        if not whole_vectors(size := call.sizes.get(name, 0), call.dtype):
            return Verdict(False, f"rows of weights must be whole vectors, not {name}={size}")
    return verdict


def _fused_wide(call: OpCall) -> Verdict:
    if call.dtype == torch.bfloat16:
        return Verdict(False, "intermediate results need float32 or float64")
    return _fused(call)


def _quant_moe(call: OpCall) -> Verdict:
    if call.dtype not in (torch.float32, torch.bfloat16):
        return Verdict(False, "activations must be float32 or bfloat16")
    return _fused(call)


def _native_scores(call: OpCall) -> Verdict:
    if call.dtype == torch.float64:
        return Verdict(False, "scores need float32")
    return _native(call)


class Cpu(TorchCpu):
    """Core's plain CPU backend with additional kernels."""

    name = "cpu"
    rows = FEW_ROWS
    """Maximum tokens of a replayed step; with more, the kernels hide the interpreter's overhead."""

    def probe(self) -> Probe:
        """Always usable; reports the vector instructions, and the ops that are slower without a compiler."""
        cores = f"{allowed_cores()} CPU cores, {torch.backends.cpu.get_cpu_capability()}"
        if reason := missing_cxx():
            ops = sorted({kernel.op for kernel in self.kernels() if kernel.name.endswith(".native")})
            return Probe(True, f"{cores}; {reason}; torch's operators run instead, slower: {', '.join(ops)}")
        return Probe(True, cores)

    def choices(self) -> list[str]:
        """Returns in words what was measured on this processor, now if never before; ``arcforge doctor`` shows it."""
        verdict = grouped_mm(OpCall("moe_experts", "cpu", torch.bfloat16))
        experts = explained(grouped_experts) if verdict.ok else f"experts in bf16: {verdict.reason}"
        return [experts, *filter(None, (pairs(), bf16_product.explained(), int8_product.explained()))]

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor] | None:
        """Records steps that consist of C calls and a few torch operators; see `contracts.hardware.Recorder`."""
        return record(step)

    def kernels(self) -> Sequence[Kernel]:
        """Returns this package's kernels: C++ if there is a compiler, torch's operators for the other ops."""
        return [*native_kernels(), *tiled_kernels(), *torch_kernels("cpu", _on_cpu)]


def native_kernels() -> list[Kernel]:
    """Returns the C++ kernels; those of fused ops declare the number of rows up to which they are faster."""
    attention = (attention_varlen, attention_decode, selected_attention, mla_decode, sparse_mla, indexer_kl)
    rows = (linear, rope, rms_norm, swiglu, hadamard, to_records, linear_cross_entropy, argmax_logprob, sample)
    quantised = (quant_linear, quant_experts, quant_mlp)
    answers: dict[Callable[..., Any], Callable[[OpCall], Verdict]] = {
        **dict.fromkeys((*attention, *rows, *quantised), _native),
        indexer_topk: _native_scores,
        moe_experts: first_no(grouped_mm, _native),  # grouped_mm for many tokens of wide experts
        **dict.fromkeys((mla_prolog, mla_absorb, mla_epilog, index_prolog), _fused_wide),
        **dict.fromkeys((mlp, moe), _fused),
        quant_moe: _quant_moe,
    }
    few, fewer = dict.fromkeys(DIRECT, FEW_ROWS), dict.fromkeys(DIRECT, QUANT_ROWS)
    fused = (mla_prolog, mla_absorb, mla_epilog, index_prolog, moe)
    limits = {**dict.fromkeys(fused, few), **dict.fromkeys((quant_mlp, quant_moe), fewer)}
    return [
        Kernel(fn.__name__, f"cpu.{fn.__name__}.native", fn, answer, priority=1, rows=limits.get(fn, {}))
        for fn, answer in answers.items()
    ]


def tiled_kernels() -> list[Kernel]:
    """Returns the kernels of torch's operators that are only for CPUs."""
    return [
        Kernel("linear", "cpu.linear.float32", bf16_product.linear, _on_cpu),
        Kernel("rms_norm", "cpu.rms_norm.function", tiled_norm.rms_norm, _on_cpu),
        Kernel("attention_varlen", "cpu.attention_varlen.tiled", tiled_attention.attention_varlen, _on_cpu),
        Kernel("attention_decode", "cpu.attention_decode.tiled", tiled_attention.attention_decode, _on_cpu),
        Kernel("mla_decode", "cpu.mla_decode.tiled", tiled_mla.mla_decode, _on_cpu),
        Kernel("quant_experts", "cpu.quant_experts.int_mm", int_mm_experts, _on_cpu),
    ]
