"""The CPU backend: the kernels that torch's operators alone do not give."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import YES, Kernel, OpCall, Probe, Verdict
from arcforge_core.ops.hardware import TorchCpu
from arcforge_hw.cpu.attention_varlen import attention_decode, attention_varlen
from arcforge_hw.cpu.mla_decode import mla_decode
from arcforge_hw.cpu.native import few_rows, layer, library, missing_compiler, quant, records, whole_vectors
from arcforge_hw.cpu.native.attention_decode import attention_decode as native_attention_decode
from arcforge_hw.cpu.native.attention_varlen import attention_varlen as native_attention
from arcforge_hw.cpu.native.attention_varlen import selected_attention as native_selected
from arcforge_hw.cpu.native.indexer_kl import indexer_kl as native_indexer_kl
from arcforge_hw.cpu.native.indexer_topk import indexer_topk as native_indexer_topk
from arcforge_hw.cpu.native.likeliest import likeliest
from arcforge_hw.cpu.native.linear_cross_entropy import linear_cross_entropy as native_cross_entropy
from arcforge_hw.cpu.native.mla_decode import mla_decode as native_mla_decode
from arcforge_hw.cpu.native.race import race
from arcforge_hw.cpu.native.record import record
from arcforge_hw.cpu.native.sparse_mla import sparse_mla as native_sparse_mla
from arcforge_hw.cpu.rms_norm import rms_norm
from arcforge_hw.torch_ops.gated_delta_rule import gated_delta_rule
from arcforge_hw.torch_ops.hadamard import hadamard
from arcforge_hw.torch_ops.head_linear import head_linear
from arcforge_hw.torch_ops.indexer_kl import indexer_kl
from arcforge_hw.torch_ops.indexer_topk import indexer_topk
from arcforge_hw.torch_ops.linear_cross_entropy import linear_cross_entropy
from arcforge_hw.torch_ops.moe_experts import moe_experts
from arcforge_hw.torch_ops.newton_schulz import newton_schulz
from arcforge_hw.torch_ops.quant_linear import quant_experts, quant_linear
from arcforge_hw.torch_ops.selected_attention import selected_attention
from arcforge_hw.torch_ops.sparse_mla import sparse_mla
from arcforge_hw.torch_ops.window_attention import window_attention
from arcforge_hw.verdicts import fewer_on_gram, first_no, grouped_mm


def _on_cpu(call: OpCall) -> Verdict:
    if call.device_type != "cpu":
        return Verdict(False, f"device {call.device_type} is not cpu")
    if call.dtype not in (torch.float32, torch.bfloat16, torch.float64):
        return Verdict(False, f"{call.dtype} is slow on CPUs and untested here")
    return YES


def _native(call: OpCall) -> Verdict:
    verdict = _on_cpu(call)
    return library().verdict() if verdict.ok else verdict


def _fused(call: OpCall) -> Verdict:
    if call.needs_grad:
        return Verdict(False, "fused ops have no gradients")
    verdict = _native(call)
    for name in ("hidden", "query", "latent", "inner", "width", "shared") if verdict.ok else ():
        if not whole_vectors(size := call.sizes.get(name, 0), call.dtype):
            return Verdict(False, f"rows of weights are read in whole vectors, {name}={size} is none")
    return verdict


def _fused_wide(call: OpCall) -> Verdict:
    if call.dtype == torch.bfloat16:
        return Verdict(False, "what is between its products is kept in float32 or float64")
    return _fused(call)


def _quant_moe(call: OpCall) -> Verdict:
    if call.dtype not in quant.DTYPES:
        return Verdict(False, "activations are float32 or bfloat16")
    return _fused(call)


def _native_scores(call: OpCall) -> Verdict:
    if call.dtype == torch.float64:
        return Verdict(False, "scores are computed in float32")
    return _native(call)


_grouped_mm = first_no(grouped_mm, _on_cpu)
_gram = first_no(fewer_on_gram, _on_cpu)
_native_experts = first_no(grouped_mm, _native)  # grouped_mm for more than a few tokens


class Cpu(TorchCpu):
    """Core's plain backend of this machine's CPU, with kernels of its own."""

    name = "cpu"

    def probe(self) -> Probe:
        """A CPU is always there; tells its vector instructions, and what runs slower without a compiler."""
        cores = f"{os.cpu_count()} CPU cores, {torch.backends.cpu.get_cpu_capability()}"
        if reason := missing_compiler():
            ops = sorted({kernel.op for kernel in self.kernels() if kernel.name.endswith(".native")})
            return Probe(True, f"{cores}; {reason}; torch's operators run instead, slower: {', '.join(ops)}")
        return Probe(True, cores)

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor] | None:
        """Repeats steps that are C calls and little else; see `contracts.hardware.Recorder`."""
        return record(step)

    def kernels(self) -> Sequence[Kernel]:
        """Returns the kernels of this package."""
        return [
            Kernel("linear", "cpu.linear.native", few_rows.linear, _native),
            Kernel("head_linear", "cpu.head_linear.bmm", head_linear, _on_cpu),
            Kernel("rope", "cpu.rope.native", few_rows.rope, _native),
            Kernel("rms_norm", "cpu.rms_norm.native", few_rows.rms_norm, _native, priority=1),
            Kernel("rms_norm", "cpu.rms_norm.function", rms_norm, _on_cpu),
            Kernel("attention_varlen", "cpu.attention_varlen.native", native_attention, _native, priority=1),
            Kernel("attention_varlen", "cpu.attention_varlen.tiled", attention_varlen, _on_cpu),
            Kernel("window_attention", "cpu.window_attention.blocks", window_attention, _on_cpu),
            Kernel("attention_decode", "cpu.attention_decode.native", native_attention_decode, _native, priority=1),
            Kernel("attention_decode", "cpu.attention_decode.tiled", attention_decode, _on_cpu),
            Kernel("mla_decode", "cpu.mla_decode.native", native_mla_decode, _native, priority=1),
            Kernel("mla_decode", "cpu.mla_decode.tiled", mla_decode, _on_cpu),
            Kernel("gated_delta_rule", "cpu.gated_delta_rule.chunks", gated_delta_rule, _on_cpu),
            Kernel("indexer_topk", "cpu.indexer_topk.native", native_indexer_topk, _native_scores, priority=1),
            Kernel("indexer_topk", "cpu.indexer_topk.blocks", indexer_topk, _on_cpu),
            Kernel("sparse_mla", "cpu.sparse_mla.native", native_sparse_mla, _native, priority=1),
            Kernel("sparse_mla", "cpu.sparse_mla.blocks", sparse_mla, _on_cpu),
            Kernel("selected_attention", "cpu.selected_attention.native", native_selected, _native, priority=1),
            Kernel("selected_attention", "cpu.selected_attention.tiles", selected_attention, _on_cpu),
            Kernel("indexer_kl", "cpu.indexer_kl.native", native_indexer_kl, _native, priority=1),
            Kernel("indexer_kl", "cpu.indexer_kl.blocks", indexer_kl, _on_cpu),
            Kernel("moe_experts", "cpu.moe_experts.native", few_rows.moe_experts, _native_experts, priority=1),
            Kernel("moe_experts", "cpu.moe_experts.grouped_mm", moe_experts, _grouped_mm),
            *(
                Kernel(fn.__name__, f"cpu.{fn.__name__}.native", fn, _fused_wide)
                for fn in (layer.mla_prolog, layer.mla_absorb, layer.mla_epilog, layer.index_prolog)
            ),
            Kernel("mlp", "cpu.mlp.native", layer.mlp, _fused),
            Kernel("moe", "cpu.moe.native", layer.moe, _fused),
            Kernel("newton_schulz", "cpu.newton_schulz.gram", newton_schulz, _gram),
            Kernel("hadamard", "cpu.hadamard.native", records.hadamard, _native, priority=1),
            Kernel("hadamard", "cpu.hadamard.butterfly", hadamard, _on_cpu),
            Kernel("to_records", "cpu.to_records.native", records.to_records, _native),
            Kernel("quant_linear", "cpu.quant_linear.native", quant.quant_linear, _native, priority=1),
            Kernel("quant_linear", "cpu.quant_linear.int_mm", quant_linear, _on_cpu),
            Kernel("quant_experts", "cpu.quant_experts.native", quant.quant_experts, _native, priority=1),
            Kernel("quant_experts", "cpu.quant_experts.int_mm", quant_experts, _on_cpu),
            Kernel("quant_mlp", "cpu.quant_mlp.native", quant.quant_mlp, _native),
            Kernel("quant_moe", "cpu.quant_moe.native", quant.quant_moe, _quant_moe),
            Kernel(
                "linear_cross_entropy", "cpu.linear_cross_entropy.native", native_cross_entropy, _native, priority=1
            ),
            Kernel("likeliest", "cpu.likeliest.native", likeliest, _native),
            Kernel("race", "cpu.race.native", race, _native),
            Kernel("linear_cross_entropy", "cpu.linear_cross_entropy.chunked", linear_cross_entropy, _on_cpu),
        ]
