"""Schemas of this package's environments; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcforge_core.config.schema import EnvironmentConfig, check_at_least, check_between, check_choice
from arcforge_core.errors import ConfigError

KINDS = ("arithmetic", "expressions", "algebra", "fractions", "quadratics")


def check_choices(field_name: str, values: list[str], accepted: tuple[str, ...]) -> None:
    """Raises `ConfigError` unless there are values, and all of them are accepted."""
    if not values:
        raise ConfigError(field_name, [], f"must name at least one of {', '.join(accepted)}")
    for value in values:
        check_choice(field_name, value, accepted)


@dataclass
class MathConfig(EnvironmentConfig):
    """Problems with numbers; the first three kinds are those of the fine-tuning data, in its words."""

    name: str = "math"
    kinds: list[str] = field(default_factory=lambda: ["arithmetic", "expressions", "algebra"])
    """Of ``arithmetic``, ``expressions``, ``algebra``, ``fractions`` and ``quadratics``; one is drawn for each task."""
    digits: int = 3
    """Of the numbers of sums and differences, at most."""
    steps: int = 2
    """Of expressions: 2 or 3."""
    factor_digits: int = 2
    """Of the numbers in expressions."""
    largest: int = 20
    """Largest solution of equations, and largest part of fractions."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.kinds", self.kinds, KINDS)
        check_between("environment.digits", self.digits, 1, 30)
        check_between("environment.steps", self.steps, 2, 3)
        check_between("environment.factor_digits", self.factor_digits, 1, 15)
        check_between("environment.largest", self.largest, 2, 10**6)
        check_at_least("environment.seed", self.seed, 0)
