"""The Acme NPU as an arcforge backend: probe, kernels of three ops, roofline.

A vendor's kernels would call the chip's library; these are plain torch, so that the example runs anywhere, but
they are computed in the chip's way and not in the reference's.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import torch

from acme_arcforge_npu.configs import AcmeNpuConfig
from acme_arcforge_npu.kernels import attention_varlen, rms_norm, swiglu
from arcforge_core.contracts.device import Capabilities, Identity
from arcforge_core.contracts.hardware import YES, Change, Kernel, OpCall, Probe, Roofline, Verdict
from arcforge_core.ops.hardware import TorchCpu

DRIVER = "torch_acme"
TOLERANCE = {torch.float32: 5e-6}


class AcmeNpu:
    """One Acme NPU, or its simulation on the CPU.

    Args:
        config: tile size, and whether to simulate.
    """

    name = "acme_npu"

    def __init__(self, config: AcmeNpuConfig) -> None:
        self.config = config
        self.simulated = config.simulate or os.environ.get("ACME_NPU_SIMULATE") == "1"
        names = ("cpu", "CPU", "gloo") if self.simulated else ("privateuseone", "PrivateUse1", "accl")
        self.identity = Identity("acme", *names)
        self.capabilities = TorchCpu.capabilities if self.simulated else Capabilities(int64=True)

    def probe(self) -> Probe:
        """Looks for the driver without importing it."""
        if self.simulated:
            return Probe(True, "simulated on the CPU")
        if importlib.util.find_spec(DRIVER) is None:
            return Probe(False, f"no Acme driver: {DRIVER} is not installed (ACME_NPU_SIMULATE=1 simulates the chip)")
        return Probe(True, f"driver {DRIVER} found")

    def confirm(self) -> Probe:
        """Imports the driver of a chip that was found."""
        if (probe := self.probe()).ok and not self.simulated:
            try:
                importlib.import_module(DRIVER)
            except ImportError as error:
                return Probe(False, f"the driver {DRIVER} cannot be imported: {error}")
        return probe

    def kernels(self) -> Sequence[Kernel]:
        """Returns kernels of three ops; core's references cover the rest."""
        attention = functools.partial(attention_varlen, tile=self.config.tile)
        return [
            Kernel("rms_norm", "acme_npu.rms_norm", rms_norm, self.supports, priority=10, tolerance=TOLERANCE),
            Kernel("swiglu", "acme_npu.swiglu", swiglu, self.supports, priority=10, tolerance=TOLERANCE),
            Kernel(
                "attention_varlen", "acme_npu.attention", attention, self.supports, priority=10, tolerance=TOLERANCE
            ),
        ]

    def supports(self, call: OpCall) -> Verdict:
        """The chip computes in fp32, on its own device."""
        if call.device_type != self.identity.device:
            return Verdict(False, f"device {call.device_type} is not {self.identity.device}")
        if call.dtype != torch.float32:
            return Verdict(False, f"{call.dtype} is not supported, only torch.float32")
        return YES

    def roofline(self) -> Roofline:
        """Peak rates from the data sheet."""
        return Roofline(matmul_flops={"float32": 90e12}, memory_bytes_per_s=1.2e12, memory_bytes=48 * 2**30)

    def adjust_config(self, config: Any) -> list[Change]:
        """Asks for fp32: in bf16 every kernel would decline and the references would run."""
        if config.trainer.precision == "fp32":
            return []
        return [Change("trainer.precision", "fp32", "the Acme NPU computes in fp32 only")]
