"""Schemas of this package's components; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.config.schema import HardwareConfig


@dataclass
class CpuConfig(HardwareConfig):
    """A CPU."""

    name: str = "cpu"


@dataclass
class CudaConfig(HardwareConfig):
    """An NVIDIA GPU."""

    name: str = "cuda"
