"""Configuration of environments that play packages of third parties."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcforge_core.config.schema import EnvironmentConfig, check_minimums
from arcforge_rl.configs.environments import check_choices

BFCL_CATEGORIES = ("base", "miss_func", "miss_param", "long_context")


@dataclass
class BfclConfig(EnvironmentConfig):
    """Multi-turn tasks of the Berkeley Function Calling Leaderboard."""

    name: str = "bfcl"
    path: str = ""
    """Folder with the packages bfcl_eval and mpmath; empty: the layer ``bfcl`` (``arcforge-env layers fetch bfcl``)."""
    categories: list[str] = field(default_factory=lambda: list(BFCL_CATEGORIES))
    """Any of ``base``, ``miss_func`` (a function is offered late), ``miss_param`` (a value is said late) and
    ``long_context`` (results are long)."""
    max_calls: int = 20
    """Maximum calls of the agent in one turn."""
    longest_result: int = 20_000
    """Maximum characters of a result that the agent sees."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.categories", self.categories, BFCL_CATEGORIES)
        check_minimums(self, "environment", max_calls=1, longest_result=1)
