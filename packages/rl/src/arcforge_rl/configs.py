"""Schemas of this package's components and commands; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from omegaconf import MISSING

from arcforge_core.config.schema import (
    CheckerConfig,
    EngineConfig,
    EnvironmentConfig,
    HardwareConfig,
    PlayConfig,
    ProcedureConfig,
    SandboxConfig,
    ToolboxConfig,
    check_at_least,
    check_between,
    check_choice,
    check_text,
)
from arcforge_core.errors import ConfigError

OPERATIONS = ("add", "subtract", "multiply")
THINKING = ("off", "on")
AGENTS = ("model", "oracle", "noop")
SOURCES = (
    "arithmetic", "expressions", "terse_expressions", "algebra", "puzzles", "traces", "functions",
    "calculator", "lookup", "files", "search", "python", "instructions", "documentation", "greetings",
)  # fmt: skip
"""What conversations are made from."""
CHOICES = ("short", "likely")


@dataclass
class ArithmeticConfig(EnvironmentConfig):
    """Integer arithmetic."""

    name: str = "arithmetic"
    digits: int = 2
    """Digits of each number at most."""
    operations: list[str] = field(default_factory=lambda: ["add", "subtract"])
    """Of ``add``, ``subtract`` and ``multiply``; one is drawn for each task."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("environment.digits", self.digits, 1, 100)
        check_at_least("environment.seed", self.seed, 0)
        if not self.operations:
            raise ConfigError("environment.operations", [], f"must name at least one of {', '.join(OPERATIONS)}")
        for operation in self.operations:
            check_choice("environment.operations", operation, OPERATIONS)


@dataclass
class LocalSandboxConfig(SandboxConfig):
    """What the sandboxes of this machine share."""

    cgroup: str | None = None
    """Folder of a delegated, empty version 2 control group to make groups in; None: below this process's own."""
    read_only: list[str] = field(default_factory=list)
    """Absolute paths that commands may read and execute, besides the system's /usr, e.g. an interpreter's prefix."""


@dataclass
class BubblewrapConfig(LocalSandboxConfig):
    """Namespaces by bubblewrap."""

    name: str = "bubblewrap"


@dataclass
class LandlockConfig(LocalSandboxConfig):
    """Landlock and seccomp without namespaces; weaker."""

    name: str = "landlock"


@dataclass
class AutoSandboxConfig(LocalSandboxConfig):
    """bubblewrap where it works, else landlock; where neither does, an error."""

    name: str = "auto"


@dataclass
class DockerConfig(SandboxConfig):
    """Containers of a Docker daemon."""

    name: str = "docker"
    program: str = "docker"
    """The client: docker, or what takes its arguments, e.g. podman."""
    image: str = "debian:stable-slim"
    """Image that is already there; it must have a shell, coreutils and tar. Nothing is pulled."""


@dataclass
class SandboxToolboxConfig(ToolboxConfig):
    """The tools of our builders, run in sandboxes."""

    name: str = "sandbox"
    sandbox: str = "auto"
    """A component of kind sandbox with its defaults."""


@dataclass
class ReasoningGymCheckerConfig(CheckerConfig):
    """A puzzle of reasoning-gym."""

    name: str = "reasoning_gym"
    dataset: str = ""
    seed: int = 0
    index: int = 0
    question: str = ""
    """Hash of the question, so that another version's puzzle of the same number is noticed."""

    def __post_init__(self) -> None:
        for name in ("dataset", "question"):
            check_text(f"checker.{name}", getattr(self, name))
        for name in ("seed", "index"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ConfigError(f"checker.{name}", value, "must be a whole number of at least 0")


@dataclass
class OutputCheckerConfig(CheckerConfig):
    """What a program prints."""

    name: str = "python_output"
    program: str = ""

    def __post_init__(self) -> None:
        check_text("checker.program", self.program)


@dataclass
class DoctestCheckerConfig(CheckerConfig):
    """A function of the standard library, written anew."""

    name: str = "python_doctest"
    module: str = ""
    """Its file below the library, e.g. ``json/decoder.py``."""
    function: str = ""
    """Its name, with those of the classes around it."""

    def __post_init__(self) -> None:
        for name in ("module", "function"):
            check_text(f"checker.{name}", getattr(self, name))


@dataclass
class MakingConfig:
    """Which conversations are made."""

    prefix: ClassVar[str] = ""
    """Where the fields stand on a command line, for errors."""

    sources: list[str] = field(default_factory=lambda: list(SOURCES))
    """What to make conversations from."""
    count: int = 200
    """Conversations of each source to train on."""
    counts: dict[str, int] = field(default_factory=dict)
    """Of these sources so many instead; on a command line e.g. ``+counts.calculator=1000``."""
    heldout: int = 50
    """Conversations of each source to evaluate on; they share no operands with the others."""
    system: str | None = None
    """A system message before every conversation."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError(f"{self.prefix}sources", [], f"must name at least one of {', '.join(SOURCES)}")
        for name in self.sources:
            check_choice(f"{self.prefix}sources", name, SOURCES)
        for name in ("count", "heldout", "seed"):
            check_at_least(f"{self.prefix}{name}", getattr(self, name), 0)
        if self.system is not None and not self.system.strip():
            raise ConfigError(f"{self.prefix}system", self.system, "must say something, or be null")
        for name, count in self.counts.items():
            check_choice(f"{self.prefix}counts", name, tuple(self.sources))
            check_at_least(f"{self.prefix}counts.{name}", count, 0)


@dataclass
class ConversationsConfig(MakingConfig):
    """The root of ``arcforge-conversations``."""

    sandbox: SandboxConfig = MISSING
    """Where programs and tools run."""
    output_dir: str = "outputs/conversations"
    """Folder of the files; what it holds of an earlier call is replaced."""


@dataclass
class MadeConversationsConfig(ProcedureConfig, MakingConfig):
    """Conversations are made, trained on and played."""

    prefix: ClassVar[str] = "procedure."

    name: str = "made_conversations"
    folder: str = "outputs/conversations"
    """Where they are; they are made anew when those there were made with other options."""

    def __post_init__(self) -> None:
        MakingConfig.__post_init__(self)


@dataclass
class SamplingConfig(PlayConfig):
    """How problems are tried several times, and which tries are kept."""

    temperature: float = 1.0
    """0 is greedy, and every try the same."""
    samples: int = 8
    """Tries at each problem."""
    per_problem: int | None = 1
    """Right tries kept of each problem at most; None keeps all of them."""
    choose: str = "short"
    """Which right tries go first: ``short``, those of the fewest tokens, or ``likely``, those of the highest mean
    log-prob."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("samples", "per_problem"):
            check_at_least(f"{self.prefix}{name}", getattr(self, name), 1)
        check_choice(f"{self.prefix}choose", self.choose, CHOICES)


@dataclass
class SampleConfig(SamplingConfig):
    """The root of ``arcforge-sample``."""

    hardware: HardwareConfig = MISSING
    checkpoint: str = MISSING
    """Folder of a model with its tokenizer, or of a run, e.g. ``outputs/latest``."""
    output_dir: str = "outputs/samples"
    """Folder of what is kept; what it holds of an earlier call is replaced."""


@dataclass
class ExpertIterationConfig(ProcedureConfig, SamplingConfig):
    """Rounds of trying problems, keeping right tries and training on them."""

    prefix: ClassVar[str] = "procedure."

    name: str = "expert_iteration"
    rounds: int = 2
    """How often; each begins with the weights of the one before."""
    restart: bool = False
    """Train each round from `init` instead, on the right tries of all rounds so far."""

    def __post_init__(self) -> None:
        SamplingConfig.__post_init__(self)
        check_at_least("procedure.rounds", self.rounds, 1)


@dataclass
class ValidateConfig:
    """The root of ``arcforge-env validate``."""

    environment: EnvironmentConfig = MISSING
    episodes: int = 20
    """Tasks 0, 1, ... up to this many, or all that there are."""

    def __post_init__(self) -> None:
        check_at_least("episodes", self.episodes, 1)


@dataclass
class EnvConfig:
    """The root of ``arcforge-env run``."""

    environment: EnvironmentConfig = MISSING
    engine: EngineConfig = MISSING
    hardware: HardwareConfig = MISSING
    agent: str = "model"
    """``model`` samples from the checkpoint; ``oracle`` and ``noop`` check the environment without one."""
    checkpoint: str | None = None
    """Folder of a model with its tokenizer, or of a run, e.g. ``outputs/latest``."""
    episodes: int = 32
    """Tasks 0, 1, ... up to this many."""
    rollouts: int = 1
    """Rollouts of each task."""
    max_new_tokens: int = 16
    """Length of a completion at most; it ends earlier at the tokenizer's end-of-text token."""
    temperature: float = 1.0
    """0 is greedy."""
    thinking: str = "off"
    """``on`` or ``off``: how the chat template begins a reply."""
    seed: int = 0
    """Of what is sampled; a rollout's own is made from it and its number."""
    output_dir: str = "outputs"

    def __post_init__(self) -> None:
        check_choice("agent", self.agent, AGENTS)
        check_choice("thinking", self.thinking, THINKING)
        for name in ("episodes", "rollouts", "max_new_tokens"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("temperature", self.temperature, 0.0)
        check_at_least("seed", self.seed, 0)
        if self.agent == "model" and self.checkpoint is None:
            raise ConfigError("checkpoint", None, "agent=model needs a folder; agent=oracle or agent=noop needs none")
        if self.agent != "model" and self.checkpoint is not None:
            raise ConfigError("checkpoint", self.checkpoint, f"agent={self.agent} uses no model; leave it out")
