"""Schemas of rewards that measure episodes; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcforge_core.config.schema import CheckerConfig, check_at_least, check_minimums
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


@dataclass
class StyleConfig(CheckerConfig):
    """Nearness to texts that people wrote."""

    name: str = "style"
    files: list[str] = field(default_factory=list)
    """Their texts: files of records (their ``reply``, ``text`` or last message), plain texts, or folders; empty: the
    prose of the reference pages that ship with Python."""
    least: int = 5
    """Words of a reply at least; a shorter one has no style, and earns 0."""

    def __post_init__(self) -> None:
        check_at_least("options.least", self.least, 1)


@dataclass
class OrmConfig(CheckerConfig):
    """An outcome reward model. One of `checkpoint` and `url`."""

    name: str = "orm"
    checkpoint: str | None = None
    """Folder of a model with a scalar head, as of a run of ``arcforge-train stage=reward``; it runs in this process."""
    url: str | None = None
    """Server with ``/pooling``, as ``arcforge-serve`` of such a folder and vLLM."""
    model: str | None = None
    """Name of the model there; null omits it."""
    key_variable: str | None = None
    """Environment variable with the server's key; null sends none."""
    seconds: float = 60.0
    """That an answer may take."""
    attempts: int = 3
    """At a request that the server refuses as busy, fails, or does not answer in time."""

    def check(self) -> None:
        """Checks the fields together."""
        named = [name for name in ("checkpoint", "url") if getattr(self, name)]
        if len(named) != 1:
            raise ConfigError("options", named, "must name one of checkpoint and url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError("options.url", self.url, "must begin with http:// or https://")
        if self.url is None and (self.model or self.key_variable):
            raise ConfigError("options", self.model or self.key_variable, "model and key_variable are of a server")
        check_minimums(self, "options", attempts=1)
        if not 0.0 < self.seconds < float("inf"):
            raise ConfigError("options.seconds", self.seconds, "must be finite and above 0")
