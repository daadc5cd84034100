"""The part that the backends of all vendors share: detection, confirmation, and kernels made of torch's operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

import torch

from arcforge_core.config.schema import HardwareConfig
from arcforge_core.contracts.device import TRAINING, Capabilities, Identity
from arcforge_core.contracts.hardware import Change, Kernel, OpCall, Probe, Roofline, Verdict
from arcforge_hw.torch_ops.kernels import kernels as torch_kernels
from arcforge_hw.torch_ops.verdicts import on_device
from arcforge_hw.vendors.evidence import Evidence
from arcforge_hw.vendors.machine import here
from arcforge_hw.vendors.signs import SIGNS

COMMON = Capabilities(int64=True, bf16=True, collectives=TRAINING)
UNSURE = ("quant_linear", "moe_experts")
"""Ops whose portable kernels call operators that a vendor's torch may lack: ``_int_mm`` and ``grouped_mm``."""


class VendorChip:
    """The base of a backend; the class line of a subclass says in what its chip differs from a common one.

    A common chip has an extension of torch called ``torch_DEVICE``, or is ``cuda`` to torch, which then is the vendor's
    own build with collectives called ``nccl``. It has int64 and bfloat16, no float64, and the collectives of training.

    Attributes:
        module: torch's extension, imported by `confirm`; empty if torch itself is the vendor's build.
    """

    name: ClassVar[str]
    identity: Identity
    capabilities: Capabilities
    module: ClassVar[str]

    def __init_subclass__(
        cls, vendor: str, triton: str, device: str = "cuda", distributed: str = "nccl", **abilities: Any
    ) -> None:
        """Describes a chip.

        Args:
            vendor: the name of the vendor, of its signs and of the backend.
            triton: Triton's name of the target.
            device: torch's name of the device.
            distributed: its backend of `torch.distributed`.
            abilities: fields of `Capabilities` that differ from `COMMON`.
        """
        super().__init_subclass__()
        shared = device == "cuda"
        cls.name, cls.module = vendor, "" if shared else f"torch_{device}"
        cls.identity = Identity(vendor, device, "CUDA" if shared else "PrivateUse1", distributed, triton)
        cls.capabilities = replace(COMMON, **abilities)

    def __init__(self, config: HardwareConfig, machine: Evidence | None = None) -> None:
        self.config, self._machine = config, machine

    @property
    def machine(self) -> Evidence:
        """The evidence that `probe` judges; this machine's unless the constructor got a recording."""
        return here() if self._machine is None else self._machine

    def probe(self) -> Probe:
        """Looks for device nodes, the driver's tool and packages; imports nothing of the vendor."""
        signs = SIGNS[self.name]
        devices, software = signs.devices(self.machine), signs.software(self.machine)
        if not devices:
            where = f"no {signs.nodes[0]}, and " if signs.nodes else ""
            return Probe(False, f"no device found: {where}{signs.tool.split()[0]} lists none")
        if not software:
            return Probe(False, f"{devices}; torch does not use them without {signs.wanted()}")
        return Probe(True, f"{devices}; {software}")

    def confirm(self) -> Probe:
        """Imports torch's extension and asks it for devices."""
        if not (probe := self.probe()).ok:
            return probe
        device = self.identity.device
        try:
            if self.module:
                import_module(self.module)
            runtime: Any = getattr(torch, device, None)
            count = 0 if runtime is None or not runtime.is_available() else runtime.device_count()
        except Exception as error:  # whatever a vendor's driver raises
            return Probe(False, f"{probe.reason}; but {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        if not count:
            return Probe(False, f"{probe.reason}; but torch.{device} finds no device")
        return Probe(True, f"{probe.reason}; torch.{device} has {count}")

    def kernels(self) -> Sequence[Kernel]:
        """Returns the kernels made of torch's operators that need no operator beyond the common ones."""
        return [kernel for kernel in torch_kernels(self.name, self._supports) if kernel.op not in UNSURE]

    def _supports(self, call: OpCall) -> Verdict:
        if call.dtype == torch.float64 and not self.capabilities.float64:
            return Verdict(False, f"{self.name} has no float64")
        if call.dtype == torch.bfloat16 and not self.capabilities.bf16:
            return Verdict(False, f"{self.name} has no bfloat16")
        return on_device(self.identity.device)(call)

    def roofline(self) -> Roofline:
        """Returns no rates: only a measurement on the chip gives them."""
        return Roofline()

    def adjust_config(self, config: Any) -> list[Change]:
        """Changes nothing."""
        return []
