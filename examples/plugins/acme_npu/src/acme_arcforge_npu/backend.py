"""The Acme NPU as an arcforge backend: probe, kernels, weights in the chip's layout, roofline.

A vendor's kernels would call the chip's library; these are plain torch, but they are computed in the chip's way and not
in the reference's. The simulation is a torch device of its own, ``acme``, without float64 and without host tensors in a
kernel, so what runs there runs on no CPU by mistake.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from acme_arcforge_npu.configs import AcmeNpuConfig
from acme_arcforge_npu.kernels import attention_varlen, linear, rms_norm, swiglu
from arcforge_core.contracts.device import COLLECTIVES, Capabilities, Identity
from arcforge_core.contracts.hardware import YES, Change, Kernel, OpCall, Probe, Roofline, Verdict, Weight

DRIVER = "torch_acme"
TOLERANCE = {torch.float32: 5e-6}
SIMULATED = Capabilities(
    int64=True, bf16=True, fp8=True, fused_adamw=True, autocast=True, streams=True, compiler="fake_chip",
    collectives=frozenset(COLLECTIVES),
)  # fmt: skip


class AcmeNpu:
    """One Acme NPU, or its simulation.

    Args:
        config: tile size, and whether to simulate.
    """

    name = "acme_npu"

    def __init__(self, config: AcmeNpuConfig) -> None:
        self.config = config
        self.simulated = config.simulate or os.environ.get("ACME_NPU_SIMULATE") == "1"
        self.identity = Identity("acme", "acme", "PrivateUse1", "gloo" if self.simulated else "accl")
        self.capabilities = SIMULATED if self.simulated else Capabilities(int64=True)

    def probe(self) -> Probe:
        """Looks for the driver without importing it."""
        if self.simulated:
            return Probe(True, "simulated as the device acme")
        if importlib.util.find_spec(DRIVER) is None:
            return Probe(False, f"no Acme driver: {DRIVER} is not installed (ACME_NPU_SIMULATE=1 simulates the chip)")
        return Probe(True, f"driver {DRIVER} found")

    def confirm(self) -> Probe:
        """Imports the driver of a chip that was found, or makes the simulated device."""
        if self.simulated:
            from arcforge_core.testing.fake_chip.device import install

            try:
                install("acme")
                importlib.import_module("arcforge_core.testing.fake_chip.compiler")
            except RuntimeError as error:
                return Probe(False, f"the simulation needs a process and a torch that allow it: {error}")
        if (probe := self.probe()).ok and not self.simulated:
            try:
                importlib.import_module(DRIVER)
            except ImportError as error:
                return Probe(False, f"the driver {DRIVER} cannot be imported: {error}")
        return probe

    def kernels(self) -> Sequence[Kernel]:
        """Returns kernels of three ops, and of products with prepared weights; core's references cover the rest."""
        attention = functools.partial(attention_varlen, tile=self.config.tile)
        return [
            Kernel("rms_norm", "acme_npu.rms_norm", rms_norm, self.supports, priority=10, tolerance=TOLERANCE),
            Kernel("swiglu", "acme_npu.swiglu", swiglu, self.supports, priority=10, tolerance=TOLERANCE),
            Kernel(
                "attention_varlen", "acme_npu.attention", attention, self.supports, priority=10, tolerance=TOLERANCE
            ),
            Kernel("linear", "acme_npu.linear", linear, self.forward_only, layouts={"weight_NK": "columns"}),
        ]

    def prepare_weight(self, weight: Weight, value: Tensor) -> Tensor | None:
        """Returns a matrix by columns; MLA multiplies with `kv_b_proj` in another form, so it stays as it is."""
        return None if weight.name.endswith("kv_b_proj.weight") else value.mT.contiguous()

    def restore_weight(self, weight: Weight, prepared: Tensor) -> Tensor:
        """Returns the matrix."""
        return prepared.mT.contiguous()

    def forward_only(self, call: OpCall) -> Verdict:
        """As `supports`, without gradients."""
        return Verdict(False, "no gradients with weights by columns") if call.needs_grad else self.supports(call)

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
