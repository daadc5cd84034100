"""The schema of ``environment=slides``; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.config.schema import EnvironmentConfig, check_at_least, check_between, check_choice
from arcforge_core.errors import ConfigError


@dataclass
class SlidesConfig(EnvironmentConfig):
    """Decks of HTML pages."""

    name: str = "slides"
    fewest: int = 3
    """Minimum number of pages, that of the title included."""
    most: int = 5
    """Maximum number of pages."""
    points: int = 4
    """Maximum number of points on a page."""
    rules: bool = True
    """Whether the prompt lists the rules, which are most of it; models that know decks need none."""
    level: int = 1
    """1: markup and styles are judged; 2: the measures of a browser, too; 3: pictures of the pages, too. 2 and 3 need
    Linux and ``arcforge-env layers fetch chromium-headless``."""
    judge: str = "rules"
    """``rules``, or ``agent``: the pictures of level 3 are also shown to the agent ``judge``, a server of a model that
    sees (``"+agents.judge={url: http://127.0.0.1:8000, model: NAME}"``), whose grades can only lower the reward."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("environment.fewest", self.fewest, 2, 7)
        check_between("environment.most", self.most, self.fewest, 7)
        check_between("environment.points", self.points, 2, 5)
        check_between("environment.level", self.level, 1, 3)
        check_at_least("environment.seed", self.seed, 0)
        check_choice("environment.judge", self.judge, ("rules", "agent"))
        if self.judge == "agent" and self.level < 3:
            raise ConfigError("environment.judge", self.judge, "needs environment.level=3, which takes pictures")
