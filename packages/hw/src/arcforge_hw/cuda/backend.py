"""The CUDA backend: Triton kernels where Triton is installed, otherwise kernels of `torch_ops` and of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from arcforge_core.contracts.device import GENERAL, Identity
from arcforge_core.contracts.hardware import YES, Change, Kernel, OpCall, Probe, Roofline, Verdict
from arcforge_core.ops.hardware import sdpa_attention_varlen
from arcforge_hw.configs import CudaConfig
from arcforge_hw.cuda import gated_delta_rule as fla
from arcforge_hw.cuda.launch import interpreted, missing_triton
from arcforge_hw.cuda.vendors import NVIDIA_NAMES, other_vendor_here
from arcforge_hw.torch_ops.kernels import kernels as torch_kernels
from arcforge_hw.torch_ops.verdicts import first_no, on_device

DENSE_BF16 = {"H100": 989e12, "H200": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12}
"""FLOP/s from the vendor's data sheets, without sparsity (SXM)."""
BANDWIDTH = {"H200": 4.8e12, "H100": 3.35e12, "H800": 3.35e12, "A100": 2.04e12, "A800": 2.04e12}
"""Bytes/s from the vendor's data sheets (80 GB and 141 GB SXM)."""


_on_gpu = on_device("cuda")


def _int_mm(call: OpCall) -> Verdict:
    for name in ("inputs", "outputs"):
        if (size := call.sizes.get(name, 8)) % 8:
            return Verdict(False, f"int8 products on CUDA need multiples of 8, not {name}={size}")
    return _on_gpu(call)


def _torch(call: OpCall) -> Verdict:
    return _int_mm(call) if call.op == "quant_linear" else _on_gpu(call)


_fla = first_no(_on_gpu, fla.supports)


def _triton(call: OpCall) -> Verdict:
    if call.device_type != "cuda" and not (call.device_type == "cpu" and interpreted()):
        return Verdict(False, f"device {call.device_type} is not cuda")
    if call.dtype not in (torch.float32, torch.bfloat16):
        return Verdict(False, f"the kernels support float32 and bfloat16, not {call.dtype}")
    if interpreted() and call.dtype == torch.bfloat16:
        return Verdict(False, "Triton's interpreter is incorrect in bfloat16")
    return YES


class Cuda:
    """NVIDIA GPUs."""

    name = "cuda"
    identity = Identity("nvidia", "cuda", "CUDA", "nccl", triton="cuda")
    capabilities = replace(GENERAL, fast_bf16=True, streams=True, pinned_memory=True, compiler="inductor")

    def __init__(self, config: CudaConfig) -> None:
        self.config = config

    def probe(self) -> Probe:
        """Asks torch for a device, and who made it; the reason names missing parts."""
        if not torch.backends.cuda.is_built():
            return Probe(False, f"torch {torch.__version__} was built without CUDA")
        if vendor := other_vendor_here():
            return Probe(False, f"hardware=cuda is for NVIDIA's GPUs, and these are of {vendor}")
        if not torch.cuda.is_available():
            return Probe(False, "torch finds no CUDA device (nvidia-smi shows whether the driver does)")
        return Probe(True, f"{torch.cuda.device_count()} CUDA devices")

    def confirm(self) -> Probe:
        """Reads the device's name, which other vendors' devices do not share, and looks for Triton."""
        if not (probe := self.probe()).ok:
            return probe
        name = torch.cuda.get_device_name(0)
        if not NVIDIA_NAMES.search(name):
            return Probe(False, f"hardware=cuda is for NVIDIA's GPUs, and device 0 calls itself {name!r}")
        found = f"{torch.cuda.device_count()} x {name}"
        missing = missing_triton()
        return Probe(True, f"{found}; {missing}; torch's operators run instead" if missing else found)

    def kernels(self) -> Sequence[Kernel]:
        """Returns the kernels made of torch's operators, and the Triton kernels if Triton is installed."""
        own = [
            Kernel("attention_varlen", "cuda.attention_varlen.sdpa", sdpa_attention_varlen, _on_gpu),
            Kernel("gated_delta_rule", "cuda.gated_delta_rule.fla", fla.gated_delta_rule, _fla, priority=1),
        ]
        kernels = [*own, *torch_kernels("cuda", _torch)]
        return kernels if missing_triton() else [*kernels, *triton_kernels()]

    def roofline(self) -> Roofline:
        """Returns the data sheet's rates for known devices."""
        name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
        flops, rate = (next((v for k, v in table.items() if k in name), None) for table in (DENSE_BF16, BANDWIDTH))
        memory = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None
        return Roofline({"bfloat16": flops} if flops else None, rate, memory)

    def adjust_config(self, config: Any) -> list[Change]:
        """Changes nothing: ``trainer.precision=auto`` selects bfloat16 on a GPU."""
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
