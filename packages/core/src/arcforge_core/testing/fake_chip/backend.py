"""The backend of the fake chip: no kernels of its own, so every op is a reference on the chip's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arcforge_core.contracts.device import Capabilities, Identity
from arcforge_core.contracts.hardware import Change, Kernel, Probe, Roofline
from arcforge_core.testing.fake_chip.device import chip


class FakeChip:
    """The chip that this process has installed.

    Args:
        **abilities: fields of `Capabilities` that differ from those of the installed chip, true or not.
    """

    name = "fake_chip"

    def __init__(self, **abilities: Any) -> None:
        limits = chip().limits
        self.identity = Identity("fake", chip().name, "PrivateUse1", "gloo")
        self.capabilities = Capabilities(
            **{"float64": limits.float64, "int64": limits.int64, "bf16": True, **abilities}
        )

    def probe(self) -> Probe:
        """It is there, being simulated."""
        return Probe(True, f"simulated as {chip().name}")

    def confirm(self) -> Probe:
        """As `probe`."""
        return self.probe()

    def kernels(self) -> Sequence[Kernel]:
        """Returns none."""
        return []

    def roofline(self) -> Roofline:
        """Nothing is known."""
        return Roofline()

    def adjust_config(self, config: Any) -> list[Change]:
        """Changes nothing."""
        return []
