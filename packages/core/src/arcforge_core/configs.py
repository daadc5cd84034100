"""Schemas of core's own components; torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import ClassVar

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
    OptimizerConfig,
    ParserConfig,
    PlayConfig,
    ProcedureConfig,
    ScheduleConfig,
    SuiteConfig,
    ToolboxConfig,
    check_at_least,
    check_between,
    check_choice,
    check_multiple,
    check_text,
    check_weights,
)
from arcforge_core.data.needles import EVALUATION_DEPTHS
from arcforge_core.errors import ConfigError, nearest
from arcforge_core.eval.long_context.tasks import TASKS


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
    """A letter for each layer, or a few that are repeated, e.g. ``SF``. The MTP module is like the last layer."""
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
class OneRunConfig(ProcedureConfig):
    """One training run."""

    name: str = "one_run"


@dataclass
class ReportConfig(ComponentConfig):
    """Base of reports: what ``arcforge-report`` makes of a run whose configuration has a section of that name."""


@dataclass
class TrainReportConfig(ReportConfig):
    """The report of runs that learn from a corpus."""

    name: str = "data"


@dataclass
class SimpleEngineConfig(EngineConfig):
    """Static batches."""

    name: str = "simple"
    max_batch_size: int = 16
    weights: str = "none"
    """Number format of the weights: ``none``, the checkpoint's; ``w8a8``, ``w4a8`` or ``int4``. The model that
    the engine is given is changed in place."""

    def __post_init__(self) -> None:
        check_weights("engine.weights", self.weights)
        check_at_least("engine.max_batch_size", self.max_batch_size, 1)


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
class StdlibDataConfig(DataConfig):
    """The standard library of the running Python and its `pydoc_data` text."""

    name: str = "stdlib"
    include_tests: bool = False
    """Also the library's own test suite."""
    functions: float = 0.7
    """Share of the training tokens taken from single functions of the training files, each a document of its own,
    at the margin and without its docstring; 0 trains on files alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("data.functions", self.functions, 0.0, 0.95)


@dataclass
class FilesDataConfig(DataConfig):
    """Files and folders."""

    name: str = "files"
    paths: list[str] = field(default_factory=list)
    """Files or folders; folders are read recursively."""
    suffixes: list[str] = field(default_factory=list)
    """Only these endings inside folders, e.g. [.py, .md]; empty takes every readable text."""
    text_field: str = "text"
    """Column of jsonl and parquet rows that holds the text."""
    document_bytes: int | None = None
    """Cut text files at line ends into documents of about so many bytes; None keeps a file whole."""
    licence: str = "unknown"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("data.document_bytes", self.document_bytes, 1)
        for suffix in self.suffixes:
            if not suffix.startswith("."):
                raise ConfigError("data.suffixes", suffix, "each starts with a dot, e.g. .py")


@dataclass
class HubDataConfig(DataConfig):
    """A data set of the `datasets` library: a hub name or a local path."""

    name: str = "hub"
    dataset: str = ""
    split: str = "train"
    text_field: str = "text"
    licence: str = "unknown"


CORPORA = ("chat", "reasoning", "agent")
CONVERSATION_FILTERS = ("format", "truncation", "repetition", "duplicates", "near_duplicates", "answers")


@dataclass
class ConversationsDataConfig(DataConfig):
    """Conversations for supervised fine-tuning, in three corpora; each is a list of files and folders."""

    name: str = "conversations"
    packing: str = "best_fit"
    """Conversations are never cut, so ``best_fit``."""
    chat: list[str] = field(default_factory=list)
    """General chat: jsonl, json and parquet files, folders of them, folders that `datasets` saved."""
    reasoning: list[str] = field(default_factory=list)
    """Reasoning: logic, mathematics, science."""
    agent: list[str] = field(default_factory=list)
    """Coding and agents with tools."""
    weights: dict[str, float] = field(default_factory=dict)
    """Share of the tokens of ``chat``, ``reasoning`` and ``agent``, in any unit; absent means 1. None given at all
    trains on every conversation once an epoch."""
    format: str = "auto"
    """Records as ``openai`` (messages) or ``sharegpt`` (from, value) has them; ``auto`` looks at each."""
    thinking: str = "interleaved"
    """Mode of records that have reasoning and name none: ``interleaved``, ``preserved``; those without reasoning are
    ``off``."""
    mask_errors: bool = True
    """Keep messages of the assistant whose tool calls failed out of the loss; they stay in the conversation."""
    on_invalid: str = "report"
    """``report`` leaves records that are no conversations out and lists them; ``fail`` ends at the first one."""
    filters: list[str] = field(default_factory=lambda: ["format", "truncation", "repetition", "duplicates", "answers"])
    """Of ``format``, ``truncation``, ``repetition``, ``duplicates``, ``near_duplicates`` and ``answers`` (asks the
    checkers that records name)."""
    max_repetition: float = 0.5
    """filters=repetition: share of an answer's phrases that may have stood there before."""
    near_duplicates: float = 0.8
    """filters=near_duplicates: share of common phrases from which on a conversation is one of an earlier one."""
    max_tokens: int = 202_752
    """Tokens of a conversation at most; training rows hold trainer.sequence_length + 1."""
    too_long: str = "reject"
    """``reject`` leaves longer conversations out; ``cut`` cuts them behind the last turn of the assistant that fits."""
    min_trained_tokens: int = 1
    """Tokens with loss that a conversation has at least."""
    licence: str = "unknown"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.packing != "best_fit":
            raise ConfigError("data.packing", self.packing, "conversations are never cut: must be best_fit")
        for name in self.weights:
            check_choice("data.weights", name, CORPORA)
            if not getattr(self, name):
                raise ConfigError(f"data.weights.{name}", self.weights[name], f"data.{name} names no files")
            if not 0 < self.weights[name] < float("inf"):
                raise ConfigError(f"data.weights.{name}", self.weights[name], "must be greater than 0")
        for name in self.filters:
            check_choice("data.filters", name, CONVERSATION_FILTERS)
        check_choice("data.format", self.format, ("auto", "openai", "sharegpt"))
        check_choice("data.thinking", self.thinking, ("interleaved", "preserved"))
        check_choice("data.on_invalid", self.on_invalid, ("report", "fail"))
        check_choice("data.too_long", self.too_long, ("reject", "cut"))
        check_between("data.max_repetition", self.max_repetition, 0.0, 1.0)
        check_between("data.near_duplicates", self.near_duplicates, 0.1, 1.0)
        check_at_least("data.max_tokens", self.max_tokens, 2)
        check_at_least("data.min_trained_tokens", self.min_trained_tokens, 1)


@dataclass
class RetrievalDataConfig(DataConfig):
    """Generated episodes: text with needles in it, then questions and answers."""

    name: str = "retrieval"
    episodes: int = 4000
    """Documents."""
    min_characters: int = 500
    max_characters: int = 1000
    """Size of an episode, between these two; it should fit in a row (trainer.sequence_length), at two to three
    characters a token."""
    min_pairs: int = 4
    max_pairs: int = 16
    """Keys with values in an episode, between these two; at most one per hundred characters."""
    learn: str = "questions"
    """``questions``: only these and their answers carry the loss, for keys and values cannot be foreseen where they
    first stand; ``all``: every token does."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("episodes", "min_pairs"):
            check_at_least(f"data.{name}", getattr(self, name), 1)
        check_choice("data.learn", self.learn, ("questions", "all"))
        check_at_least("data.max_pairs", self.max_pairs, self.min_pairs)
        check_at_least("data.min_characters", self.min_characters, 100 * self.min_pairs)
        check_at_least("data.max_characters", self.max_characters, self.min_characters)
        check_at_least("data.seed", self.seed, 0)


@dataclass
class MixtureDataConfig(DataConfig):
    """Several sources."""

    name: str = "mixture"
    sources: dict[str, DataConfig] = field(default_factory=dict)
    """Filled on the command line or in YAML: ``+data@data.sources.code=stdlib``."""
    weights: dict[str, float] = field(default_factory=dict)
    """Share of each source's tokens, in any unit; absent means 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, weight in self.weights.items():
            if name not in self.sources:
                known = ", ".join(self.sources) or "none"
                hint = nearest(name, self.sources)
                raise ConfigError(f"data.weights.{name}", weight, f"no source of that name; there are {known}{hint}")
            if not 0 < weight < float("inf"):
                raise ConfigError(f"data.weights.{name}", weight, "must be greater than 0; leave a source out instead")
        for name, source in self.sources.items():
            if isinstance(source, MixtureDataConfig):
                raise ConfigError(f"data.sources.{name}", "mixture", "a mixture holds plain sources")
            for shared in fields(DataConfig):
                value = getattr(source, shared.name)
                if shared.name != "name" and value != getattr(type(source)(), shared.name):
                    raise ConfigError(
                        f"data.sources.{name}.{shared.name}", value, f"belongs to the mixture: data.{shared.name}"
                    )


@dataclass
class LanguageModelSuiteConfig(SuiteConfig):
    """Bits per byte of held-out text beside compressors, and functions that parse."""

    name: str = "language_model"
    sequence_length: int = 512
    micro_batch_tokens: int = 8192
    """Tokens of one forward pass; a multiple of sequence_length."""
    max_tokens: int | None = None
    """Held-out tokens measured at most; None takes them all."""
    functions: int = 50
    """Functions sampled from the prompt ``def NAME(`` and parsed; 0 samples none."""
    max_new_tokens: int = 160
    """Length of a sampled function at most."""
    temperature: float = 0.6
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("sequence_length", "micro_batch_tokens", "max_tokens", "max_new_tokens"):
            check_at_least(f"suite.{name}", getattr(self, name), 1)
        for name in ("functions", "temperature", "seed"):
            check_at_least(f"suite.{name}", getattr(self, name), 0)
        check_multiple("suite.micro_batch_tokens", self.micro_batch_tokens, "sequence_length", self.sequence_length)


@dataclass
class LongContextSuiteConfig(SuiteConfig):
    """RULER-style tasks at growing lengths, on a checkpoint or on an endpoint."""

    name: str = "long_context"
    tasks: list[str] = field(default_factory=lambda: list(TASKS))
    lengths: list[int] = field(default_factory=lambda: [256, 512, 1024])
    """Tokens of a prompt and its answer."""
    depths: list[float] = field(default_factory=lambda: [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    """Shares of the context before what is asked for; tenths, because training on data=retrieval keeps off them."""
    samples: int = 5
    """Examples for each task, length and depth."""
    seed: int = 0
    output: str | None = None
    """Folder of the results, gone on with when it has some; None takes one below outputs/long_context."""
    endpoint: str | None = None
    """Base URL of a server with OpenAI's completions API, measured instead of a checkpoint."""
    model: str | None = None
    """The model's name there; None sends none."""
    tokenizer: str | None = None
    """A ``tokenizer.json`` or its folder, in whose tokens lengths at an endpoint are counted; None approximates."""

    def __post_init__(self) -> None:
        for name in ("tasks", "lengths", "depths"):
            if not getattr(self, name):
                raise ConfigError(f"suite.{name}", [], "must name at least one")
        for task in self.tasks:
            check_choice("suite.tasks", task, TASKS)
        for length in self.lengths:
            check_at_least("suite.lengths", length, 1)
        for depth in self.depths:
            if depth not in EVALUATION_DEPTHS:
                raise ConfigError("suite.depths", depth, "must be one of 0, 0.1, 0.2, ..., 1")
        check_at_least("suite.samples", self.samples, 1)
        check_at_least("suite.seed", self.seed, 0)
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError("suite.endpoint", self.endpoint, "must begin with http:// or https://")
        if self.endpoint is None:
            for name in ("model", "tokenizer"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"suite.{name}", getattr(self, name), "belongs to suite.endpoint; set that too")


@dataclass
class ConversationsSuiteConfig(SuiteConfig, PlayConfig):
    """Held-out conversations, played by generation and checked."""

    prefix: ClassVar[str] = "suite."

    name: str = "conversations"
    output: str | None = None
    """Folder of figures and transcripts; None takes a dated one below outputs."""

    def __post_init__(self) -> None:
        PlayConfig.__post_init__(self)


@dataclass
class RecordedToolboxConfig(ToolboxConfig):
    """The calls and results of the record; nothing is run."""

    name: str = "recorded"


@dataclass
class MtpAcceptanceSuiteConfig(SuiteConfig):
    """Tokens drafted by the MTP module that the main model accepts."""

    name: str = "mtp_acceptance"
    drafts: int = 4
    """Tokens drafted at each position."""
    positions: int = 1024
    """Positions of held-out text, and as many of greedy continuations of it; rounded up to whole texts."""
    sequence_length: int = 128
    """Tokens before a position at most."""

    def __post_init__(self) -> None:
        for name in ("drafts", "positions"):
            check_at_least(f"suite.{name}", getattr(self, name), 1)
        check_at_least("suite.sequence_length", self.sequence_length, 2)


@dataclass
class DataCommandConfig:
    """The root of ``arcforge-data``."""

    data: DataConfig = MISSING
    vocab_size: int = 4096
    """Entries of a trained vocabulary where data.tokenizer.vocab_size has none, as model.vocab_size in training."""
    verify: bool = False
    """Read every shard and compare it with its hash in the manifest."""

    def __post_init__(self) -> None:
        check_at_least("vocab_size", self.vocab_size, 300)


@dataclass
class PipelineConfig:
    """The root of ``arcforge-pipeline``."""

    name: str = MISSING
    """Name of the recipe, part of its folder's name."""
    overrides: list[str] = field(default_factory=list)
    """What all stages have, as typed for ``arcforge-train``."""
    stages: dict[str, list[str]] = field(default_factory=dict)
    """Stages in their order, and what each has besides. On the command line ``stages.NAME.FIELD=VALUE`` adds to one."""
    check: bool = False
    """Compose and check all stages, print the plan, and stop; no data is read and nothing is written."""
    resume: str | None = None
    """``latest``, or the folder of a pipeline's run to go on with."""
    output_dir: str = "outputs/pipelines"

    def __post_init__(self) -> None:
        if not self.stages:
            raise ConfigError("stages", {}, "a pipeline needs at least one")
        for name in self.stages:
            if not re.fullmatch(r"[A-Za-z]\w*", name):
                raise ConfigError("stages", name, "names are letters, digits and _, e.g. extend_2k")
