"""Configuration of `environment=office`."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcforge_core.config.schema import EnvironmentConfig, check_minimums
from arcforge_rl.configs.environments import check_choices

KINDS = ("purchase", "meeting", "refund")


@dataclass
class OfficeConfig(EnvironmentConfig):
    """Goals in a store, a bank and calendars, each of which is an MCP server in a sandbox."""

    name: str = "office"
    kinds: list[str] = field(default_factory=lambda: list(KINDS))
    """Any of ``purchase``, ``meeting`` and ``refund``."""
    max_calls: int = 30
    """Maximum calls of the agent."""
    seed: int = 0
    """Decides which tasks are drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.kinds", self.kinds, KINDS)
        check_minimums(self, "environment", max_calls=1)
