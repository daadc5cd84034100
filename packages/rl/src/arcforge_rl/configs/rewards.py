"""Schemas of rewards that measure episodes; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.config.schema import CheckerConfig, check_at_least
from arcforge_core.errors import ConfigError


@dataclass
class WordsConfig(CheckerConfig):
    """A length in words."""

    name: str = "words"
    least: int = 1
    """Words of the last reply at least."""
    most: int = 200
    """Words of it at most."""

    def __post_init__(self) -> None:
        check_at_least("options.least", self.least, 0)
        if self.most < self.least:
            raise ConfigError("options.most", self.most, f"must be at least options.least={self.least}")


@dataclass
class DistinctConfig(CheckerConfig):
    """Absence of repetition."""

    name: str = "distinct"
    words: int = 3
    """Words of an n-gram."""

    def __post_init__(self) -> None:
        check_at_least("options.words", self.words, 1)
