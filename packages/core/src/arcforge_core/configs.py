"""Schemas of core's own components and jobs, torch-free; data sources and suites come from `config`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from omegaconf import MISSING

from arcforge_core.config.schema import (
    AttentionConfig,
    ChatTemplateConfig,
    CheckerConfig,
    ComponentConfig,
    DataConfig,
    EngineConfig,
    EnvironmentConfig,
    HardwareConfig,
    LoggerConfig,
    OptimizerConfig,
    ParserConfig,
    ScheduleConfig,
    check_at_least,
    check_between,
    check_choice,
    check_minimums,
    check_text,
    check_weights,
)
from arcforge_core.config.sources import CONVERSATION_FILTERS as CONVERSATION_FILTERS
from arcforge_core.config.sources import CORPORA as CORPORA
from arcforge_core.config.sources import ConversationsDataConfig as ConversationsDataConfig
from arcforge_core.config.sources import FilesDataConfig as FilesDataConfig
from arcforge_core.config.sources import HubDataConfig as HubDataConfig
from arcforge_core.config.sources import MixtureDataConfig as MixtureDataConfig
from arcforge_core.config.sources import RetrievalDataConfig as RetrievalDataConfig
from arcforge_core.config.sources import StdlibDataConfig as StdlibDataConfig
from arcforge_core.config.suites import EVALUATION_DEPTHS as EVALUATION_DEPTHS
from arcforge_core.config.suites import LONG_CONTEXT_TASKS as LONG_CONTEXT_TASKS
from arcforge_core.config.suites import ConversationsSuiteConfig as ConversationsSuiteConfig
from arcforge_core.config.suites import LanguageModelSuiteConfig as LanguageModelSuiteConfig
from arcforge_core.config.suites import LongContextSuiteConfig as LongContextSuiteConfig
from arcforge_core.config.suites import MtpAcceptanceSuiteConfig as MtpAcceptanceSuiteConfig
from arcforge_core.errors import ConfigError

ARCHITECTURES = ("arcforge", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "llama")

DTYPES = ("float32", "bfloat16", "float16", "int8")

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass
class ReferenceAttentionConfig(AttentionConfig):
    """Naive attention."""

    name: str = "reference"
    form: str = "mla"
    """``mla`` or ``gqa``."""

    def __post_init__(self) -> None:
        check_choice("attention.form", self.form, ("mla", "gqa"))


@dataclass
class PatternConfig(AttentionConfig):
    """Layers of several variants, by a pattern."""

    name: str = "pattern"
    pattern: str = ""
    """A letter for each layer, or a pattern that repeats, e.g. ``SF``. The MTP module is like the last layer."""
    kinds: dict[str, AttentionConfig] = field(default_factory=dict)
    """The variant of each letter: ``+attention@attention.kinds.S=swa attention.kinds.S.pattern=S``."""

    def __post_init__(self) -> None:
        for letter, kind in self.kinds.items():
            if len(letter) != 1:
                raise ConfigError("attention.kinds", letter, "names are single letters of attention.pattern")
            if isinstance(kind, PatternConfig):
                raise ConfigError(f"attention.kinds.{letter}", kind.name, "must be a variant, not a pattern again")
            if letter not in self.pattern:
                raise ConfigError(f"attention.kinds.{letter}", kind.name, f"not in attention.pattern={self.pattern!r}")
        for letter in self.pattern:
            if letter not in self.kinds:
                known = ", ".join(self.kinds) or "none"
                accepted = f"letter {letter} has no variant in attention.kinds; there are {known}"
                raise ConfigError("attention.pattern", self.pattern, accepted)

    def kind(self, layer_index: int, num_layers: int) -> AttentionConfig:
        """Returns the variant of a layer."""
        return self.kinds[self.pattern[min(layer_index, num_layers - 1) % len(self.pattern)]]


@dataclass
class TorchAdamWConfig(OptimizerConfig):
    """`torch.optim.AdamW`."""

    name: str = "torch_adamw"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8


@dataclass
class ConstantScheduleConfig(ScheduleConfig):
    """Linear warm-up, then the peak rate."""

    name: str = "constant"
    final: float = 1.0


@dataclass
class TorchCpuConfig(HardwareConfig):
    """Torch's own operators on the CPU."""

    name: str = "torch_cpu"


@dataclass
class AutoHardwareConfig(HardwareConfig):
    """Automatic choice; the decision is printed."""

    name: str = "auto"


@dataclass
class ReportConfig(ComponentConfig):
    """Base of reports: the report that ``arcforge-report`` writes of a run with a section of that name."""


@dataclass
class TrainReportConfig(ReportConfig):
    """The report of runs that learn from a corpus."""

    name: str = "data"


@dataclass
class RewardReportConfig(ReportConfig):
    """The report of runs that learn from pairs."""

    name: str = "pairs"


@dataclass
class TensorBoardLoggerConfig(LoggerConfig):
    """Event files."""

    name: str = "tensorboard"


@dataclass
class CsvLoggerConfig(LoggerConfig):
    """One table of all scalars."""

    name: str = "csv"


@dataclass
class WandbLoggerConfig(LoggerConfig):
    """Weights & Biases."""

    requires: ClassVar[str] = "wandb"

    name: str = "wandb"
    project: str = "arcforge"
    offline: bool = False
    """Write below the run's folder, for a later upload with ``wandb sync``."""

    def check_ready(self) -> None:
        """Logs in, which asks for a key on a terminal; with ``offline`` or ``WANDB_MODE`` there is no need to.

        Raises:
            ConfigError: there is no key.
        """
        if self.offline or os.environ.get("WANDB_MODE", "online") != "online":
            return
        import wandb

        try:
            ready, why = wandb.login(), ""
        except Exception as error:  # the library's own errors have no stable base
            ready, why = False, f" ({' '.join(str(error).split())})"
        if not ready:
            accepted = "set WANDB_API_KEY, call `wandb login`, or write files with logger.wandb.offline=true"
            raise ConfigError("logger", self.name, f"Weights & Biases has no key{why}: {accepted}")


@dataclass
class MlflowLoggerConfig(LoggerConfig):
    """MLflow."""

    requires: ClassVar[str] = "mlflow"

    name: str = "mlflow"
    experiment: str = "arcforge"
    tracking_uri: str | None = None
    """Server or store, e.g. ``http://localhost:5000``; None writes ``mlflow.db`` in the run's folder."""


@dataclass
class SimpleEngineConfig(EngineConfig):
    """Static batches."""

    name: str = "simple"
    weights: str = "none"
    """Number format of the weights: ``none``, the checkpoint's; ``w8a8``, ``w4a8`` or ``int4``. Changes the model in
    place."""

    def __post_init__(self) -> None:
        check_weights("engine.weights", self.weights)


@dataclass
class CopyConfig(EnvironmentConfig):
    """Say a word again."""

    name: str = "copy"
    letters: int = 4
    """Letters of each word."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("environment.letters", self.letters, 1, 64)
        check_at_least("environment.seed", self.seed, 0)


@dataclass
class ConversationEnvironmentConfig(EnvironmentConfig):
    """Conversation records with checkers."""

    name: str = "conversations"
    files: list[str] = field(default_factory=list)
    """Files and folders of conversations with checkers, e.g. ``outputs/conversations``."""
    limit: int | None = None
    """Maximum conversations of each source, drawn by the seed; None uses all."""
    max_calls: int = 8
    """Maximum messages with tool calls before an answer."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("environment.split", self.split, ("train", "heldout", "all"))
        check_minimums(self, "environment", limit=1, max_calls=0, seed=0)


@dataclass
class ExactCheckerConfig(CheckerConfig):
    """One text."""

    name: str = "exact"
    answer: str = ""

    def __post_init__(self) -> None:
        check_text("checker.answer", self.answer)


@dataclass
class NumberCheckerConfig(CheckerConfig):
    """The last number of an answer."""

    name: str = "number"
    answer: str = "0"
    """A number in digits, e.g. ``-12`` or ``3.5``."""

    def __post_init__(self) -> None:
        check_text("checker.answer", self.answer)


@dataclass
class Glm5TemplateConfig(ChatTemplateConfig):
    """GLM-5's own format."""

    name: str = "glm5"


@dataclass
class JinjaTemplateConfig(ChatTemplateConfig):
    """Any template of Hugging Face."""

    name: str = "jinja"
    template: str = ""
    """``chatml``, ``glm5``, ``llama3``, or a file; the tokenizer's own when empty."""
    parser: str = ""
    """A component of kind ``parser``; guessed from the template when empty."""


@dataclass
class GlmParserConfig(ParserConfig):
    """Calls of GLM-4.7 and GLM-5."""

    name: str = "glm"


@dataclass
class HermesParserConfig(ParserConfig):
    """Calls as JSON between tags."""

    name: str = "hermes"


@dataclass
class LlamaParserConfig(ParserConfig):
    """Calls as the whole answer."""

    name: str = "llama"


@dataclass
class DataCommandConfig:
    """The root of ``arcforge-data``."""

    data: DataConfig = MISSING
    init: str | None = None
    """Checkpoint whose tokenizer counts, as in a training run that starts from it."""
    vocab_size: int = 4096
    """Entries of a trained vocabulary if data.tokenizer.vocab_size is null, like model.vocab_size in training."""
    verify: bool = False
    """Read every shard and compare it with its hash in the manifest."""
    overlap: bool = False
    """Count the phrases of 13 words of held-out text that occur in training text."""

    def __post_init__(self) -> None:
        check_at_least("vocab_size", self.vocab_size, 300)


@dataclass
class ConvertConfig:
    """The root of the job ``convert``; on a command line the options of ``arcforge-convert``."""

    checkpoint: str = MISSING
    """A model, a run (its last checkpoint), a directory of transformers, or a .gguf file."""
    output_dir: str = MISSING
    """The directory to create."""
    to: str | None = None
    """``arcforge`` or an architecture of transformers; None keeps the source's, or selects one for a model of ours."""
    dtype: str | None = None
    """Of parameters: ``float32``, ``bfloat16``, ``float16``, or ``int8`` with a scale per row, which is read as
    bfloat16 and which only arcforge's own format has; None keeps the stored one (bfloat16 for a GGUF file)."""
    max_shard_size: str = "5GB"
    """Maximum size of a file: a number with KB, MB or GB."""
    overwrite: bool = False
    """Replace a checkpoint in ``output_dir``."""

    def __post_init__(self) -> None:
        if self.to is not None:
            check_choice("to", self.to, ARCHITECTURES)
        if self.dtype is not None:
            check_choice("dtype", self.dtype, DTYPES)
        self.max_shard_bytes()

    def max_shard_bytes(self) -> int:
        """Returns ``max_shard_size`` in bytes.

        Raises:
            ConfigError: it is not a size.
        """
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]B)?", self.max_shard_size.strip().upper())
        size = float(match[1]) * UNITS[match[2] or ""] if match else 0
        if size < 1:
            accepted = "must be a number with KB, MB or GB, e.g. 5GB"
            raise ConfigError("max_shard_size", self.max_shard_size, accepted)
        return int(size)


@dataclass
class PipelineConfig:
    """The root of ``arcforge-pipeline``."""

    name: str = MISSING
    """Name of the recipe, part of its folder's name."""
    job: str = "train"
    """Default job of stages."""
    overrides: list[str] = field(default_factory=list)
    """Overrides of all stages that run `job`, as typed for its command."""
    stages: dict[str, Any] = field(default_factory=dict)
    """Stages in their order. A stage is a list of overrides, or has ``job`` and ``overrides``; a group has ``repeat``
    and ``stages``. On the command line ``stages.NAME.FIELD=VALUE`` adds to one."""
    distill: dict[str, Any] = field(default_factory=dict)
    """Adds stages in which the model is taught by the checkpoints of earlier ones: ``prompts``, by stage (``init``: the
    checkpoint that the pipeline starts from) the overrides that add its prompts; ``overrides`` of every such stage;
    ``job``, ``rl`` by default; ``after_each``: distill after each stage from the second in `prompts` on, and not only
    after the last."""
    init: str | None = None
    """Checkpoint of the first training stage and of the stages before it."""
    check: bool = False
    """Compose and check all stages, print the plan, and stop; no data is read and nothing is written."""
    resume: str | None = None
    """``latest``, or the folder of a pipeline's run to resume."""
    output_dir: str = "outputs/pipelines"

    def __post_init__(self) -> None:
        if not self.stages:
            raise ConfigError("stages", {}, "a pipeline needs at least one")
