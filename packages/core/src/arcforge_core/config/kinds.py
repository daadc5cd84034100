"""Schemas that components inherit: one base dataclass per kind, torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from omegaconf import MISSING

from arcforge_core.config.checks import check_at_least, check_between, check_choice, check_minimums
from arcforge_core.errors import ConfigError


@dataclass
class ComponentConfig:
    """Base of every component's config; `name` selects the component of its kind.

    A kind with `several` takes a list, ``kind=[a,b]``; the fields of each are then at ``kind.<name>``.
    """

    several: ClassVar[bool] = False

    name: str = MISSING


@dataclass
class AttentionConfig(ComponentConfig):
    """Base of attention configs. Sizes live in the model section, which every variant reads."""


@dataclass
class OptimizerConfig(ComponentConfig):
    """Base of optimizer configs."""

    lr: float = MISSING
    """Peak learning rate; the schedule scales it."""
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        check_at_least("optimizer.lr", self.lr if isinstance(self.lr, float) else 0.0, 0.0)
        check_at_least("optimizer.weight_decay", self.weight_decay, 0.0)


@dataclass
class ScheduleConfig(ComponentConfig):
    """Base of learning-rate schedules: a factor on the peak rate as a function of progress in [0, 1]."""

    warmup: float = 0.02
    """Fraction of the run over which the rate rises linearly from 0."""
    final: float = 0.0
    """Factor at the end."""

    def __post_init__(self) -> None:
        check_between("schedule.warmup", self.warmup, 0.0, 1.0)
        check_between("schedule.final", self.final, 0.0, 1.0)


@dataclass
class HardwareConfig(ComponentConfig):
    """Base of hardware configs."""


@dataclass
class EngineConfig(ComponentConfig):
    """Base of engine configs."""


@dataclass
class EnvironmentConfig(ComponentConfig):
    """Base of environment configs."""

    split: str = "train"
    """``train``, or ``heldout`` for evaluation tasks, which are never among these."""

    def __post_init__(self) -> None:
        check_choice("environment.split", self.split, ("train", "heldout"))


@dataclass
class AlgorithmConfig(ComponentConfig):
    """Base of reinforcement learning algorithms' configs."""


@dataclass
class CorrectionConfig(ComponentConfig):
    """Base of corrections for differences between trainer and engine."""


@dataclass
class CollectionConfig(ComponentConfig):
    """Base of the ways in which a reinforcement learning run gets its rollouts."""


@dataclass
class HarnessConfig(ComponentConfig):
    """Base of the programs around the policy that work on the tasks of a reinforcement learning run."""

    seconds: float = 600.0
    """Time of a rollout; the work until then is graded."""
    max_turns: int | None = None
    """Turns that the gateway samples in a rollout; null: the server's limit. The agent's work until then is graded."""
    max_tokens: int | None = None
    """Tokens sampled in a rollout, likewise."""
    attempts: int = 2
    """Starts of a rollout: one that the infrastructure failed begins again in another session."""
    concurrency: int = 16
    """Rollouts that run at a time."""
    gateway_seconds: float = 30.0
    """How long a turn of `loop` or `mini_swe`, and the end of a session, wait for a gateway that cannot be reached,
    such as one that starts again with `gateway.log`."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ConfigError("harness.seconds", self.seconds, "must be finite and above 0")
        if not 0 <= self.gateway_seconds < float("inf"):
            raise ConfigError("harness.gateway_seconds", self.gateway_seconds, "must be finite and at least 0")
        check_minimums(self, "harness", attempts=1, concurrency=1, **dict.fromkeys(self.limits, 1))

    def check(self) -> None:
        """Checks options that have no default that works; called before any work starts.

        Raises:
            ConfigError: one is missing.
        """

    @property
    def limits(self) -> dict[str, int]:
        """Returns the given limits of a session of the gateway."""
        given = {"max_turns": self.max_turns, "max_tokens": self.max_tokens}
        return {name: value for name, value in given.items() if value is not None}


@dataclass
class CheckerConfig(ComponentConfig):
    """Base of checkers of answers; the fields are the arguments given by a record."""


@dataclass
class ChatTemplateConfig(ComponentConfig):
    """Base of chat templates."""


@dataclass
class ParserConfig(ComponentConfig):
    """Base of parsers of a chat model's answers."""


@dataclass
class SandboxConfig(ComponentConfig):
    """Base of sandboxes for untrusted code: the default limits of a command."""

    cpu_seconds: float = 10.0
    """Processor time of each process."""
    wall_seconds: float = 20.0
    """Total time of a command."""
    memory_mb: int = 1024
    """MiB of all processes together and the sandbox's files; of each process if no control group can be created."""
    processes: int = 64
    """Maximum number of processes and threads."""

    def __post_init__(self) -> None:
        check_minimums(self, "sandbox", cpu_seconds=1, wall_seconds=0.01, memory_mb=16, processes=1)


@dataclass
class SuiteConfig(ComponentConfig):
    """Base of suites of ``arcforge-eval``, where ``suite.`` may be left out before their fields."""


@dataclass
class LoggerConfig(ComponentConfig):
    """Base of loggers: destinations of a run's scalars in addition to ``metrics.csv``."""

    several: ClassVar[bool] = True
    requires: ClassVar[str] = ""
    """The package that the logger needs; the extra of arcforge-core that installs it has the same name."""

    def check_ready(self) -> None:
        """Looks, before any work and in the first process, for what the logger needs at run time.

        Raises:
            ConfigError: the logger cannot be used, e.g. without credentials.
        """


@dataclass
class CallbackConfig(ComponentConfig):
    """Base of Lightning callbacks that plugins add to a run."""

    several: ClassVar[bool] = True


@dataclass
class TokenizerConfig:
    """The tokenizer: trained on the corpus, or an existing ``tokenizer.json``."""

    path: str | None = None
    """A Hugging Face ``tokenizer.json`` or a folder with one; None trains byte-level BPE."""
    vocab_size: int | None = None
    """Entries of a trained vocabulary, special tokens included; None takes model.vocab_size."""
    train_bytes: int = 20_000_000
    """Maximum bytes of training text for the BPE."""

    def __post_init__(self) -> None:
        check_minimums(self, "data.tokenizer", vocab_size=300, train_bytes=1)


@dataclass
class DataConfig(ComponentConfig):
    """Base of data configs: a document source, its split and its packing."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    packing: str = "sequential"
    """``sequential`` fills rows in shuffled document order and cuts at row ends; ``best_fit`` cuts only
    documents longer than a row; ``long_documents`` does the same and repeats long documents."""
    long_share: float = 0.5
    """packing=long_documents: minimum share of trainer.sequence_length that makes a document long; shorter ones fill
    the rows."""
    long_repeats: int = 4
    """packing=long_documents: repetitions of a long document; each other document is used once."""
    heldout: float = 0.05
    """Fraction of documents (by hash of their key) kept for evaluation."""
    cache_dir: str | None = None
    """Folder of tokenised shards; None means $ARCFORGE_CACHE or ~/.cache/arcforge."""

    def __post_init__(self) -> None:
        check_choice("data.packing", self.packing, ("sequential", "best_fit", "long_documents"))
        if not 0.0 < self.long_share <= 1.0:
            raise ConfigError("data.long_share", self.long_share, "must be above 0 and at most 1")
        check_at_least("data.long_repeats", self.long_repeats, 1)
        for name in ("long_share", "long_repeats"):
            if self.packing != "long_documents" and getattr(self, name) != getattr(DataConfig, name):
                raise ConfigError(f"data.{name}", getattr(self, name), "only has an effect with packing=long_documents")
        check_between("data.heldout", self.heldout, 0.0, 0.5)
