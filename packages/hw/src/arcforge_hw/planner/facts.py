"""Numbers that know where they come from: each has a unit, a tier and a source, or is unknown and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from arcforge_core.errors import ConfigError

TIERS = ("measured", "vendor", "derived", "press", "assumed", "unknown")
"""From the most trusted to the least. ``derived`` is computed from other numbers; ``assumed`` is a user's or ours."""


@dataclass(frozen=True)
class Fact:
    """One number.

    Attributes:
        tier: how far the source is trusted, one of `TIERS`.
        source: where the number was read, how it was computed, or why it is unknown.
        value: None exactly if the tier is ``unknown``.
        unit: e.g. ``GB`` (10^9 bytes); None for an unknown value.
        grounds: of a derived number, the least trusted tier among what it was computed from.
    """

    tier: str
    source: str
    value: float | None = None
    unit: str | None = None
    grounds: str | None = None

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise ConfigError("tier", self.tier, f"must be one of {', '.join(TIERS)}")
        if not self.source:
            raise ConfigError("source", self.source, "a number needs a source")
        if (self.tier == "unknown") != (self.value is None) or (self.value is None) != (self.unit is None):
            raise ConfigError("value", self.value, "a known number needs a unit and a tier; an unknown one has neither")
        if self.value is not None and not 0 <= self.value < float("inf"):
            raise ConfigError("value", self.value, "must be finite and not negative")

    @property
    def trust(self) -> str:
        """The tier, of a derived number with the least trusted one that it rests on."""
        return f"{self.tier} ({self.grounds})" if self.grounds else self.tier

    @property
    def known(self) -> float:
        """The value.

        Raises:
            ConfigError: it is unknown.
        """
        if self.value is None:
            raise ConfigError("value", None, f"is unknown: {self.source}")
        return self.value


def derive(unit: str, how: str, rule: Callable[..., float], *inputs: Fact) -> Fact:
    """Returns a number computed from others; unknown if one of them is.

    Args:
        unit: of the result.
        how: the computation in words.
        rule: called with the inputs' values.
        inputs: the numbers that it is computed from.
    """
    missing = next((fact for fact in inputs if fact.value is None), None)
    if missing is not None:
        return Fact("unknown", missing.source)
    tiers = [fact.grounds or fact.tier for fact in inputs if fact.grounds or fact.tier != "derived"]  # counts are exact
    grounds = max(tiers, key=TIERS.index, default=None)
    return Fact("derived", how, rule(*(fact.value for fact in inputs)), unit, grounds)


def counted(value: float, unit: str, how: str) -> Fact:
    """Returns a number that follows from the model's shapes alone."""
    return Fact("derived", how, value, unit)
