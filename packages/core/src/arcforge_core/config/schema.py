"""Schemas of a run, torch-free, so that `--help` and completion stay fast; plugins import all schemas from here.

Bases of components are in `kinds`, the model section is in `model`. Not frozen and without `Literal` or tuples, because
OmegaConf refuses those; enumerated strings are checked in ``__post_init__``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from omegaconf import MISSING

from arcforge_core.config.checks import WEIGHTS as WEIGHTS
from arcforge_core.config.checks import check_at_least as check_at_least
from arcforge_core.config.checks import check_between as check_between
from arcforge_core.config.checks import check_choice as check_choice
from arcforge_core.config.checks import check_expressions as check_expressions
from arcforge_core.config.checks import check_minimums as check_minimums
from arcforge_core.config.checks import check_multiple as check_multiple
from arcforge_core.config.checks import check_text as check_text
from arcforge_core.config.checks import check_weights as check_weights
from arcforge_core.config.kinds import AlgorithmConfig as AlgorithmConfig
from arcforge_core.config.kinds import AttentionConfig as AttentionConfig
from arcforge_core.config.kinds import CallbackConfig as CallbackConfig
from arcforge_core.config.kinds import ChatTemplateConfig as ChatTemplateConfig
from arcforge_core.config.kinds import CheckerConfig as CheckerConfig
from arcforge_core.config.kinds import CollectionConfig as CollectionConfig
from arcforge_core.config.kinds import ComponentConfig as ComponentConfig
from arcforge_core.config.kinds import CorrectionConfig as CorrectionConfig
from arcforge_core.config.kinds import DataConfig as DataConfig
from arcforge_core.config.kinds import EngineConfig as EngineConfig
from arcforge_core.config.kinds import EnvironmentConfig as EnvironmentConfig
from arcforge_core.config.kinds import HardwareConfig as HardwareConfig
from arcforge_core.config.kinds import HarnessConfig as HarnessConfig
from arcforge_core.config.kinds import LoggerConfig as LoggerConfig
from arcforge_core.config.kinds import OptimizerConfig as OptimizerConfig
from arcforge_core.config.kinds import ParserConfig as ParserConfig
from arcforge_core.config.kinds import SandboxConfig as SandboxConfig
from arcforge_core.config.kinds import ScheduleConfig as ScheduleConfig
from arcforge_core.config.kinds import SuiteConfig as SuiteConfig
from arcforge_core.config.kinds import TokenizerConfig as TokenizerConfig
from arcforge_core.config.model import ModelConfig as ModelConfig
from arcforge_core.config.model import MtpConfig as MtpConfig
from arcforge_core.config.model import RopeScalingConfig as RopeScalingConfig
from arcforge_core.console.progress import say
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.registry import RETIRED_KINDS


@dataclass
class StepsConfig:
    """Optimizer steps, common to all kinds of training. `extra` is passed to `lightning.Trainer` unchanged."""

    max_steps: int | None = None
    """Steps; the run ends at the first limit reached."""
    minutes: float | None = None
    """Minutes of training; no step begins that would not end within them."""
    max_tokens: int | None = None
    """Tokens trained on; progress of the schedule is the largest used share of steps, tokens and minutes."""
    micro_batch_tokens: int = 4096
    """Tokens of one forward and backward pass."""
    precision: str = "auto"
    """``bf16`` computes in bfloat16 with float32 weights; ``fp32``; ``auto`` selects the faster of the two, except that
    it is ``fp32`` on CPUs with ``trainer.deterministic=true``."""
    clip_norm: float = 1.0
    """Gradient norm limit; 0 switches clipping off."""
    trainable: list[str] = field(default_factory=list)
    """Regular expressions: only parameters whose names match one are trained; empty trains all."""
    activation_checkpointing: bool = False
    deterministic: bool = False
    """Compute a sequence's logits to the same bits with any batch and any cache; slower."""
    eval_every: int = 100
    """Steps between evaluations; the run always ends with one."""
    checkpoint_every: int = 200
    """Steps between checkpoints; the run always ends with one."""
    keep_checkpoints: int = 2
    """Number of most recent checkpoints to keep."""
    checkpoint_async: bool | None = None
    """Write checkpoints from a copy in host memory while training continues; None does so on an accelerator."""
    threads: int | None = None
    """CPU threads of each process; None shares the usable cores of this machine among its processes, and takes fewer
    while other programs make them slow."""
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("trainer.precision", self.precision, ("auto", "bf16", "fp32"))
        check_minimums(self, "trainer", max_steps=1, max_tokens=1, micro_batch_tokens=1, threads=1, clip_norm=0.0)
        check_minimums(self, "trainer", eval_every=1, checkpoint_every=1, keep_checkpoints=1)
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError("trainer.minutes", self.minutes, "must be greater than 0")
        check_expressions("trainer.trainable", self.trainable)


def check_budget(trainer: StepsConfig) -> None:
    """Raises ConfigError unless a run has an end."""
    if trainer.max_steps is None and trainer.max_tokens is None and trainer.minutes is None:
        raise ConfigError("trainer.max_steps", None, "set max_steps, max_tokens or minutes")


@dataclass
class TrainerConfig(StepsConfig):
    """How to train on text; ``micro_batch_tokens`` is a multiple of ``sequence_length``."""

    sequence_length: int = 512
    accumulate: int = 1
    """Micro-batches per optimizer step; losses are weighted by tokens across them."""
    log_every: int = 10
    """Steps between rows of metrics."""
    eval_tokens: int = 65536
    """Maximum held-out tokens of an evaluation during the run; the last evaluation uses all."""
    keep_best: bool = True
    """Also save a checkpoint whenever the held-out loss improves, and keep the best."""
    samples: int = 4
    """Texts generated before and after training for the report."""
    sample_tokens: int = 96
    """Maximum length of each of these texts."""
    python_functions: int = 0
    """Python functions sampled and parsed before and after training; for corpora of Python code."""
    mtp_acceptance: int = 0
    """Held-out positions at which the MTP module drafts after training, to measure acceptance by the main model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimums(self, "trainer", accumulate=1, sequence_length=1, log_every=1, eval_tokens=1)
        check_minimums(self, "trainer", samples=0, sample_tokens=1, python_functions=0, mtp_acceptance=0)
        check_multiple("trainer.micro_batch_tokens", self.micro_batch_tokens, "sequence_length", self.sequence_length)


ADAPTED = (r"\.self_attn\.", r"\.mlp\.")
"""Default layers of adapters."""


@dataclass
class AdapterConfig:
    """Low-rank adapters, trained in place of a checkpoint's weights."""

    name: str = "none"
    """``none`` trains the weights themselves; ``lora`` freezes them and trains adapters."""
    rank: int = 16
    """Rank of each adapter."""
    alpha: float = 32.0
    """Adapters are multiplied by alpha / rank."""
    rslora: bool = False
    """Multiply by alpha / sqrt(rank) instead."""
    dropout: float = 0.0
    """Share of an adapter's inputs that training drops; must be 0 where experts or MLA's kv_b_proj are adapted."""
    targets: list[str] = field(default_factory=lambda: list(ADAPTED))
    """Regular expressions: linear layers and stacks of experts whose names match one are adapted."""

    def __post_init__(self) -> None:
        check_choice("adapter.name", self.name, ("none", "lora"))
        check_at_least("adapter.rank", self.rank, 1)
        check_between("adapter.dropout", self.dropout, 0.0, 0.9)
        if not 0 < self.alpha < float("inf"):
            raise ConfigError("adapter.alpha", self.alpha, "must be greater than 0")
        if not self.targets:
            raise ConfigError("adapter.targets", self.targets, "must name at least one layer")
        check_expressions("adapter.targets", self.targets)
        for entry in fields(self) if self.name == "none" else ():
            value = getattr(self, entry.name)
            if value != (list(ADAPTED) if entry.name == "targets" else entry.default):
                raise ConfigError(f"adapter.{entry.name}", value, "only has an effect with adapter=lora")


TOOLBOXES = {"sandbox": "sandbox_conversations", "recorded": "conversations"}
"""Environments by the names that their tools had as components of kind ``toolbox``."""


@dataclass
class PlayBaseConfig:
    """How conversations are played: a model answers, its tool calls run, and its answers are checked."""

    prefix: ClassVar[str] = ""
    """Prefix of the fields on a command line, for errors."""

    files: list[str] = field(default_factory=list)
    """Files and folders of conversations with checkers, e.g. ``outputs/conversations/heldout``."""
    limit: int | None = None
    """Maximum conversations of each source, drawn by the seed; None uses all."""
    max_new_tokens: int = 256
    """Maximum tokens of one message of the model."""
    max_calls: int = 8
    """Maximum messages with tool calls before an answer."""
    temperature: float = 0.0
    """0 is greedy."""
    seed: int = 0
    batch_size: int = 128
    """Number of concurrent conversations."""

    def __post_init__(self) -> None:
        for name in ("limit", "max_new_tokens", "batch_size"):
            check_at_least(f"{self.prefix}{name}", getattr(self, name), 1)
        for name in ("max_calls", "temperature", "seed"):
            check_at_least(f"{self.prefix}{name}", getattr(self, name), 0)


@dataclass
class PlayConfig(PlayBaseConfig):
    """Playing inside another job, with engine and environment by name."""

    engine: str | None = None
    """A component of kind engine with its defaults; None selects ``paged`` if it is installed, otherwise ``simple``."""
    environment: str | None = None
    """A component of kind environment with its defaults: ``sandbox_conversations`` runs tool calls, ``conversations``
    answers them from the record; None selects the first of these that is installed."""
    toolbox: str | None = None
    """Old name of `environment`, with the values ``sandbox`` and ``recorded``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.toolbox is not None:
            if self.toolbox not in TOOLBOXES:
                accepted = f"must be one of {', '.join(TOOLBOXES)}; for your own, {RETIRED_KINDS['toolbox']}"
                raise ConfigError(f"{self.prefix}toolbox", self.toolbox, accepted)
            self.environment, toolbox, self.toolbox = TOOLBOXES[self.toolbox], self.toolbox, None
            say(f"{self.prefix}toolbox={toolbox} is now {self.prefix}environment={self.environment}")


@dataclass
class GenerationConfig(PlayConfig):
    """Evaluation by generation in a training run; disabled without `files`."""

    prefix: ClassVar[str] = "generation."

    every: int | None = None
    """Steps between evaluations; None evaluates at the end only."""
    before: bool = True
    """Also evaluate before the first step."""
    samples: int = 3
    """Conversations of each source that the report shows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimums(self, "generation", every=1, samples=0)


@dataclass
class RunConfig:
    """Options of every run with optimizer steps."""

    trains_policy: ClassVar[bool] = True
    """Whether a later stage of a pipeline may start from its weights."""

    optimizer: OptimizerConfig = MISSING
    schedule: ScheduleConfig = MISSING
    hardware: HardwareConfig = MISSING
    trainer: StepsConfig = field(default_factory=StepsConfig)
    logger: dict[str, LoggerConfig] = field(default_factory=dict)
    """Loggers by name: ``logger=csv``, ``logger=[csv,tensorboard]``; ``logger=[]`` selects none."""
    callback: dict[str, CallbackConfig] = field(default_factory=dict)
    """Callbacks of plugins by name, called after the run's own: ``callback=[a,b]``."""
    name: str = "train"
    """Name of the run, part of its folder's name."""
    seed: int = 0
    init: str | None = None
    """Checkpoint with the initial weights and the tokenizer: a run's folder or a model's."""
    resume: str | None = None
    """``latest``, the folder of a run to resume, or one of its checkpoints."""
    output_dir: str = "outputs"
    folder: str | None = None
    """Folder of a new run; None names one in ``output_dir`` after the date, the time and ``name``."""

    def __post_init__(self) -> None:
        check_at_least("seed", self.seed, 0)


@dataclass
class TrainConfig(RunConfig):
    """The root of ``arcforge-train``. The attention may be a variant that can start from the attention of `init`."""

    attention: AttentionConfig = MISSING
    model: ModelConfig = MISSING
    data: DataConfig = MISSING
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.trainer, TrainerConfig) and isinstance(self.model, ModelConfig):
            limit, length = self.model.max_position_embeddings, self.trainer.sequence_length
            check_budget(self.trainer)
            if length > limit:
                accepted = f"the model allows at most max_position_embeddings={limit}"
                raise ConfigError("trainer.sequence_length", length, accepted)
            if self.trainer.mtp_acceptance and not self.model.mtp.depths:
                accepted = "must be 0: with model.mtp.depths=0 there is no MTP module"
                raise ConfigError("trainer.mtp_acceptance", self.trainer.mtp_acceptance, accepted)
            if self.trainer.trainable and self.adapter.name != "none":
                accepted = f"adapter={self.adapter.name} trains adapters only: name the layers in adapter.targets"
                raise ConfigError("trainer.trainable", self.trainer.trainable, accepted)


@dataclass
class EvalConfig:
    """The root of ``arcforge-eval``."""

    shorthand: ClassVar[str] = "suite"
    """The kind whose section may be left out before its fields."""

    suite: SuiteConfig = MISSING
    checkpoint: str | None = None
    """A run's folder, ``outputs/latest``, or a folder in Hugging Face's format."""
    data: DataConfig = MISSING
    """The corpus with the held-out documents."""
    hardware: HardwareConfig = MISSING
