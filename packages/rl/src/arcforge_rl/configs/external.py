"""Configuration of environments that play packages of third parties."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcforge_core.config.schema import EnvironmentConfig, check_between, check_choice, check_minimums
from arcforge_rl.configs.environments import check_choices

BFCL_CATEGORIES = ("base", "miss_func", "miss_param", "long_context")

MINIWOB_PAGES = (
    "click-button", "click-button-sequence", "click-checkboxes", "click-collapsible", "click-dialog", "click-dialog-2",
    "click-link", "click-option", "click-tab", "click-test", "click-test-2", "enter-password", "enter-text",
    "enter-text-2", "enter-text-dynamic", "find-word", "focus-text", "focus-text-2", "login-user", "odd-or-even",
    "read-table", "simple-algebra", "simple-arithmetic", "unicode-test",
)  # fmt: skip
"""Pages for which `external.miniwob.solvers` has a solver."""
TEXTWORLD_GAMES = ("coin_collector", "treasure_hunter", "simple")


@dataclass
class PackageConfig(EnvironmentConfig):
    """Base of the environments that play a package."""

    path: str = ""
    """Folder of the package; empty: the layer of the environment's name."""


@dataclass
class BfclConfig(PackageConfig):
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


@dataclass
class TextWorldConfig(PackageConfig):
    """Text adventures that TextWorld generates."""

    name: str = "textworld"
    path: str = ""
    """Folder with the package textworld and what it needs; empty: the layer ``textworld``
    (``arcforge-env layers fetch textworld``)."""
    games: list[str] = field(default_factory=lambda: list(TEXTWORLD_GAMES))
    """Any of ``coin_collector``, ``treasure_hunter`` and ``simple``."""
    level: int = 5
    """Of coin_collector and treasure_hunter, 1 to 30."""
    goal: str = "detailed"
    """How much ``simple`` says about its goal: ``detailed``, ``brief`` or ``none``."""
    max_calls: int = 60
    """Maximum commands."""
    seed: int = 0
    """Decides which games are generated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.games", self.games, TEXTWORLD_GAMES)
        check_between("environment.level", self.level, 1, 30)
        check_choice("environment.goal", self.goal, ("detailed", "brief", "none"))
        check_minimums(self, "environment", max_calls=1)


@dataclass
class MiniWobConfig(PackageConfig):
    """Pages of MiniWoB++, in a browser in a sandbox."""

    name: str = "miniwob"
    path: str = ""
    """Folder with the package miniwob; empty: the layer ``miniwob`` (``arcforge-env layers fetch miniwob``)."""
    pages: list[str] = field(default_factory=lambda: list(MINIWOB_PAGES))
    """Names of pages; see the default."""
    max_calls: int = 20
    """Maximum calls of the agent."""
    seed: int = 0
    """Decides which problems are drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.pages", self.pages, MINIWOB_PAGES)
        check_minimums(self, "environment", max_calls=1)
