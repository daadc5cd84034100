"""Schema of ``hardware=acme_npu``; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.config.schema import HardwareConfig, check_between


@dataclass
class AcmeNpuConfig(HardwareConfig):
    """Acme NPU."""

    name: str = "acme_npu"
    tile: int = 32
    """Queries and keys that one attention tile holds on the chip."""
    simulate: bool = False
    """Simulate the chip, as a torch device of its own; ACME_NPU_SIMULATE=1 does the same."""

    def __post_init__(self) -> None:
        check_between("hardware.tile", self.tile, 8, 256)
