"""The CUDA backend: kernels in Triton where it is installed, of `torch_ops` and of torch itself for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from arcforge_core.contracts.hardware import YES, Change, Kernel, OpCall, Probe, Roofline, Verdict
from arcforge_core.ops.hardware import sdpa_attention_varlen
from arcforge_hw.configs import CudaConfig
from arcforge_hw.cuda import gated_delta_rule as fla
from arcforge_hw.cuda.launch import interpreted, missing_triton
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
from arcforge_hw.torch_ops.window_attention import window_attention
from arcforge_hw.verdicts import fewer_on_gram, first_no, grouped_mm

DENSE_BF16 = {"H100": 989e12, "H200": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12}
"""FLOP/s of the vendor's data sheets, without sparsity (SXM)."""
BANDWIDTH = {"H200": 4.8e12, "H100": 3.35e12, "H800": 3.35e12, "A100": 2.04e12, "A800": 2.04e12}
"""Bytes/s of the vendor's data sheets (80 GB and 141 GB SXM)."""


def _on_gpu(call: OpCall) -> Verdict:
    if call.device_type != "cuda":
        return Verdict(False, f"device {call.device_type} is not cuda")
    if call.dtype not in (torch.float32, torch.bfloat16, torch.float64):
        return Verdict(False, f"{call.dtype} is untested here")
    return YES


def _int_mm(call: OpCall) -> Verdict:
    for name in ("inputs", "outputs"):
        if (size := call.sizes.get(name, 8)) % 8:
            return Verdict(False, f"CUDA multiplies int8 in multiples of 8, {name}={size} is none")
    return _on_gpu(call)


_fla = first_no(_on_gpu, fla.supports)


def _triton(call: OpCall) -> Verdict:
    if call.device_type != "cuda" and not (call.device_type == "cpu" and interpreted()):
        return Verdict(False, f"device {call.device_type} is not cuda")
    if call.dtype not in (torch.float32, torch.bfloat16):
        return Verdict(False, f"the kernels compute in float32 and bfloat16, not {call.dtype}")
    if interpreted() and call.dtype == torch.bfloat16:
        return Verdict(False, "Triton's interpreter is silently wrong in bfloat16")
    return YES


class Cuda:
    """NVIDIA GPUs."""

    name = "cuda"
    device_type = "cuda"
    distributed_backend = "nccl"

    def __init__(self, config: CudaConfig) -> None:
        self.config = config

    def probe(self) -> Probe:
        """Asks torch for a device; names what is missing."""
        if not torch.backends.cuda.is_built():
            return Probe(False, f"torch {torch.__version__} was built without CUDA")
        if not torch.cuda.is_available():
            return Probe(False, "torch finds no CUDA device (nvidia-smi shows whether the driver does)")
        found = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
        return Probe(
            True, f"{found}; {missing}; torch's operators run instead" if (missing := missing_triton()) else found
        )

    def kernels(self) -> Sequence[Kernel]:
        """Returns the kernels made of torch's operators, and those in Triton where it is installed."""
        kernels = [
            Kernel("head_linear", "cuda.head_linear.bmm", head_linear, _on_gpu),
            Kernel("attention_varlen", "cuda.attention_varlen.sdpa", sdpa_attention_varlen, _on_gpu),
            Kernel("window_attention", "cuda.window_attention.blocks", window_attention, _on_gpu),
            Kernel("gated_delta_rule", "cuda.gated_delta_rule.fla", fla.gated_delta_rule, _fla, priority=1),
            Kernel("gated_delta_rule", "cuda.gated_delta_rule.chunks", gated_delta_rule, _on_gpu),
            Kernel("indexer_topk", "cuda.indexer_topk.blocks", indexer_topk, _on_gpu),
            Kernel("sparse_mla", "cuda.sparse_mla.blocks", sparse_mla, _on_gpu),
            Kernel("selected_attention", "cuda.selected_attention.tiles", selected_attention, _on_gpu),
            Kernel("indexer_kl", "cuda.indexer_kl.blocks", indexer_kl, _on_gpu),
            Kernel("moe_experts", "cuda.moe_experts.grouped_mm", moe_experts, first_no(grouped_mm, _on_gpu)),
            Kernel("newton_schulz", "cuda.newton_schulz.gram", newton_schulz, first_no(fewer_on_gram, _on_gpu)),
            Kernel("hadamard", "cuda.hadamard.butterfly", hadamard, _on_gpu),
            Kernel("quant_linear", "cuda.quant_linear.int_mm", quant_linear, _int_mm),
            Kernel("linear_cross_entropy", "cuda.linear_cross_entropy.chunked", linear_cross_entropy, _on_gpu),
        ]
        return kernels if missing_triton() else [*kernels, *triton_kernels()]

    def roofline(self) -> Roofline:
        """Returns the data sheet's rates of devices that are known."""
        name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
        flops, rate = (next((v for k, v in table.items() if k in name), None) for table in (DENSE_BF16, BANDWIDTH))
        memory = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None
        return Roofline({"bfloat16": flops} if flops else None, rate, memory)

    def adjust_config(self, config: Any) -> list[Change]:
        """Asks for nothing: ``trainer.precision=auto`` takes bfloat16 on a GPU."""
        return []


def triton_kernels() -> list[Kernel]:
    """Returns the Triton kernels; importing them imports Triton."""
    from arcforge_hw.cuda.indexer_kl import indexer_kl
    from arcforge_hw.cuda.indexer_topk import indexer_topk
    from arcforge_hw.cuda.linear_cross_entropy import linear_cross_entropy
    from arcforge_hw.cuda.mla_decode import mla_decode
    from arcforge_hw.cuda.newton_schulz import newton_schulz, supports
    from arcforge_hw.cuda.rows import rms_norm, rope, swiglu
    from arcforge_hw.cuda.sparse_mla import sparse_mla

    attention = (indexer_topk, indexer_kl, sparse_mla, mla_decode)
    functions: tuple[Callable[..., Any], ...] = (rms_norm, rope, swiglu, *attention, linear_cross_entropy)
    answers = dict.fromkeys(functions, _triton) | {newton_schulz: first_no(_triton, supports)}
    return [Kernel(fn.__name__, f"cuda.{fn.__name__}.triton", fn, answer, priority=1) for fn, answer in answers.items()]
