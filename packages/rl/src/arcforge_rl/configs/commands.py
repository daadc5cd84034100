"""Schemas of this package's components and commands; torch-free."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from omegaconf import MISSING

from arcforge_core.config.schema import (
    CheckerConfig,
    EngineConfig,
    EnvironmentConfig,
    HardwareConfig,
    PlayBaseConfig,
    SandboxConfig,
    check_at_least,
    check_between,
    check_choice,
    check_minimums,
    check_text,
)
from arcforge_core.errors import ConfigError

OPERATIONS = ("add", "subtract", "multiply")
THINKING = ("off", "on")
AGENTS = ("model", "oracle", "noop")
SOURCES = (
    "arithmetic", "expressions", "terse_expressions", "algebra", "puzzles", "traces", "functions",
    "calculator", "lookup", "files", "search", "python", "instructions", "documentation", "greetings",
    "everyday", "everyday_calculator",
)  # fmt: skip
"""Sources of generated conversations."""
CHOICES = ("short", "likely")


@dataclass
class ArithmeticConfig(EnvironmentConfig):
    """Integer arithmetic."""

    name: str = "arithmetic"
    digits: int = 2
    """Maximum digits of each number."""
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
    """Options common to the sandboxes of this machine."""

    cgroup: str | None = None
    """Folder of a delegated, empty cgroup v2 in which to create groups; None: below this process's own."""
    read_only: list[str] = field(default_factory=list)
    """Absolute paths that commands may read and execute besides the system's /usr, e.g. an interpreter's prefix."""


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
    """bubblewrap if it works, otherwise landlock; an error if neither works."""

    name: str = "auto"


@dataclass
class DockerConfig(SandboxConfig):
    """Containers of a Docker daemon."""

    name: str = "docker"
    program: str = "docker"
    """The client: docker, or a compatible one such as podman."""
    image: str = "debian:stable-slim"
    """A local image with a shell, coreutils and tar. It is never pulled."""


@dataclass
class ReasoningGymCheckerConfig(CheckerConfig):
    """A puzzle of reasoning-gym."""

    name: str = "reasoning_gym"
    dataset: str = ""
    seed: int = 0
    index: int = 0
    question: str = ""
    """Hash of the question, to detect that another version generates another puzzle for the same index."""

    def __post_init__(self) -> None:
        for name in ("dataset", "question"):
            check_text(f"checker.{name}", getattr(self, name))
        for name in ("seed", "index"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ConfigError(f"checker.{name}", value, "must be a whole number of at least 0")


@dataclass
class OutputCheckerConfig(CheckerConfig):
    """The output of a program."""

    name: str = "python_output"
    program: str = ""

    def __post_init__(self) -> None:
        check_text("checker.program", self.program)


@dataclass
class DoctestCheckerConfig(CheckerConfig):
    """A rewritten function of the standard library."""

    name: str = "python_doctest"
    module: str = ""
    """File of the function below the library, e.g. ``json/decoder.py``."""
    function: str = ""
    """Qualified name of the function, including enclosing classes."""

    def __post_init__(self) -> None:
        for name in ("module", "function"):
            check_text(f"checker.{name}", getattr(self, name))


@dataclass
class ConversationsConfig:
    """The root of ``arcforge-conversations``."""

    sources: list[str] = field(default_factory=lambda: list(SOURCES))
    """Sources of the conversations."""
    count: int = 200
    """Training conversations per source."""
    counts: dict[str, int] = field(default_factory=dict)
    """Exceptions to that number by source; on a command line e.g. ``+counts.calculator=1000``."""
    heldout: int = 50
    """Held-out conversations per source; they share no operands with the training ones."""
    system: str | None = None
    """System message of every conversation."""
    seed: int = 0
    sandbox: SandboxConfig = MISSING
    """Sandbox of programs and tools."""
    output_dir: str = "outputs/conversations"
    """Output folder; results of an earlier call there are replaced."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("sources", [], f"must name at least one of {', '.join(SOURCES)}")
        for name in self.sources:
            check_choice("sources", name, SOURCES)
        check_minimums(self, "", count=0, heldout=0, seed=0)
        if self.system is not None and not self.system.strip():
            raise ConfigError("system", self.system, "must not be blank; null gives no system message")
        for name, count in self.counts.items():
            check_choice("counts", name, tuple(self.sources))
            check_at_least(f"counts.{name}", count, 0)


@dataclass
class SamplingConfig(PlayBaseConfig):
    """Sampling of several rollouts per problem, and selection of the rollouts to keep.

    Problems are conversations with checkers (`files`), or the tasks of any other environment.
    """

    engine: EngineConfig | None = None
    """None selects ``paged`` if it is installed, otherwise ``simple``."""
    environment: EnvironmentConfig | None = None
    """None plays the records of `files`: with ``sandbox_conversations`` if they have tools and it is installed,
    otherwise with ``conversations``."""
    tasks: int | None = None
    """For an environment without files: number of tasks, from task 0; None takes 64."""
    thinking: str = "off"
    """For an environment without files: ``on`` or ``off``, how the chat template begins a reply."""
    temperature: float = 1.0
    """0 is greedy, which makes all rollouts of a problem equal."""
    samples: int = 8
    """Rollouts per problem."""
    per_problem: int | None = 1
    """Maximum right rollouts kept per problem; None keeps all."""
    choose: str = "short"
    """Preference among right rollouts: ``short``, the fewest tokens, or ``likely``, the highest mean log-prob."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{self.prefix}thinking", self.thinking, THINKING)
        for name in ("samples", "per_problem", "tasks"):
            check_at_least(f"{self.prefix}{name}", getattr(self, name), 1)
        check_choice(f"{self.prefix}choose", self.choose, CHOICES)


@dataclass
class SampleConfig(SamplingConfig):
    """The root of ``arcforge-sample``."""

    hardware: HardwareConfig = MISSING
    checkpoint: str = MISSING
    """Folder of a model with its tokenizer, or of a run, e.g. ``outputs/latest``."""
    output_dir: str = "outputs/samples"
    """Output folder of kept rollouts; results of an earlier call there are replaced."""


@dataclass
class ValidateConfig:
    """The root of ``arcforge-env validate``."""

    environment: EnvironmentConfig = MISSING
    episodes: int = 20
    """Number of tasks, from task 0; fewer if the environment has fewer."""
    repeats: int = 1
    """Plays of each script; one whose plays do not all earn the same is named as flaky."""
    concurrency: int = 1
    """Plays side by side."""
    results: str | None = None
    """File that gets one JSON line per play; plays that it holds are not repeated, failed ones are. null: no file."""

    def __post_init__(self) -> None:
        check_minimums(self, "", episodes=1, repeats=1, concurrency=1)


@dataclass
class PlayConfig:
    """The root of ``arcforge-env play``."""

    environment: EnvironmentConfig = MISSING
    task: int = 0
    """Number of the task that a person works on."""

    def __post_init__(self) -> None:
        check_at_least("task", self.task, 0)


@dataclass
class RescoreConfig:
    """The root of ``arcforge-rl rescore``."""

    run: str = MISSING
    """Folder of a run with ``collection=async``, e.g. ``outputs/latest``. Its environment is used as configured there,
    with the verifiers that are installed now."""
    write: bool = False
    """Record the rewards; a resumed run trains on them."""


@dataclass
class EnvServeConfig:
    """The root of ``arcforge-env serve``."""

    environment: EnvironmentConfig = MISSING
    host: str = "127.0.0.1"
    """Loopback address to listen on; other machines reach the service through a tunnel, because it asks for no key."""
    port: int | None = None
    """Port to listen on; 0 takes a free one. null: requests are lines of standard input, answers of standard output."""

    def __post_init__(self) -> None:
        if self.port is not None:
            check_between("port", self.port, 0, 65535)
        try:
            loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise ConfigError("host", self.host, "must be a loopback address such as 127.0.0.1: there is no key")


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
    """Number of tasks, from task 0."""
    rollouts: int = 1
    """Rollouts per task."""
    max_new_tokens: int = 16
    """Maximum tokens of a completion, which ends earlier at the tokenizer's end-of-text token."""
    temperature: float = 1.0
    """0 is greedy."""
    thinking: str = "off"
    """``on`` or ``off``: how the chat template begins a reply."""
    seed: int = 0
    """Sampling seed; each rollout derives its own from it and the rollout number."""
    records: bool = False
    """Also write the rollouts that earned 1 as conversations for ``data=conversations``, below ``kept`` in the
    folder."""
    output_dir: str = "outputs"

    def __post_init__(self) -> None:
        check_choice("agent", self.agent, AGENTS)
        check_choice("thinking", self.thinking, THINKING)
        check_minimums(self, "", episodes=1, rollouts=1, max_new_tokens=1, temperature=0.0, seed=0)
        if self.agent == "model" and self.checkpoint is None:
            raise ConfigError("checkpoint", None, "agent=model needs a folder; agent=oracle or agent=noop needs none")
        if self.agent != "model" and self.checkpoint is not None:
            raise ConfigError("checkpoint", self.checkpoint, f"agent={self.agent} uses no model; leave it out")
