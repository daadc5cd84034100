"""Schemas of a run: one base dataclass per component kind, and the model and trainer sections.

Torch-free, so that `--help` and completion stay quick. Components inherit their kind's base and add fields.
Not frozen and without `Literal` or tuples, because OmegaConf refuses those; enumerated strings are checked in
``__post_init__``.
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
from arcforge_core.config.checks import check_multiple as check_multiple
from arcforge_core.config.checks import check_text as check_text
from arcforge_core.config.checks import check_weights as check_weights
from arcforge_core.errors import ConfigError


@dataclass
class ComponentConfig:
    """Base of every component's config; `name` picks the component in its kind."""

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
    """``train``, or ``heldout`` for tasks that are never among those, to evaluate on."""

    def __post_init__(self) -> None:
        check_choice("environment.split", self.split, ("train", "heldout"))


@dataclass
class AlgorithmConfig(ComponentConfig):
    """Base of reinforcement learning algorithms' configs."""


@dataclass
class CorrectionConfig(ComponentConfig):
    """Base of configs of corrections for policies that differ."""


@dataclass
class CheckerConfig(ComponentConfig):
    """Base of checkers of answers; the fields are what a record names as arguments."""


@dataclass
class ChatTemplateConfig(ComponentConfig):
    """Base of chat templates."""


@dataclass
class ParserConfig(ComponentConfig):
    """Base of parsers of what a model answers in a chat."""


@dataclass
class ToolboxConfig(ComponentConfig):
    """Base of what runs the tool calls of conversations that are played."""


@dataclass
class SandboxConfig(ComponentConfig):
    """Base of sandboxes for untrusted code: the limits of a command where nothing else is asked for."""

    cpu_seconds: float = 10.0
    """Processor time of each process."""
    wall_seconds: float = 20.0
    """Time from start to end."""
    memory_mb: int = 1024
    """MiB of all processes together and the sandbox's files; of each process where no control group can be made."""
    processes: int = 64
    """Processes and threads at one time."""
    disk_mb: int = 256
    """MiB of the sandbox's files."""
    output_kb: int = 1024
    """KiB of standard output, and of standard error; a command that writes more is killed."""

    def __post_init__(self) -> None:
        check_at_least("sandbox.cpu_seconds", self.cpu_seconds, 1)
        check_at_least("sandbox.wall_seconds", self.wall_seconds, 0.01)
        check_at_least("sandbox.memory_mb", self.memory_mb, 16)
        for name in ("processes", "disk_mb", "output_kb"):
            check_at_least(f"sandbox.{name}", getattr(self, name), 1)


@dataclass
class SuiteConfig(ComponentConfig):
    """Base of what ``arcforge-eval`` measures; its fields may be written without ``suite.`` there."""


@dataclass
class ProcedureConfig(ComponentConfig):
    """Base of procedures: what ``arcforge-train`` does with a configuration."""


@dataclass
class TokenizerConfig:
    """The tokenizer: trained on the corpus, or an existing ``tokenizer.json``."""

    path: str | None = None
    """A Hugging Face ``tokenizer.json`` or a folder that holds one; None trains byte-level BPE."""
    vocab_size: int | None = None
    """Entries of a trained vocabulary, special tokens included; None takes model.vocab_size."""
    train_bytes: int = 20_000_000
    """Bytes of training text that the BPE is trained on at most."""

    def __post_init__(self) -> None:
        check_at_least("data.tokenizer.vocab_size", self.vocab_size, 300)
        check_at_least("data.tokenizer.train_bytes", self.train_bytes, 1)


@dataclass
class DataConfig(ComponentConfig):
    """Base of data configs: a document source, its split and its packing."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    packing: str = "sequential"
    """``sequential`` fills rows in shuffled document order and cuts at row ends; ``best_fit`` cuts only
    documents longer than a row; ``long_documents`` does so too, and trains on long documents more often."""
    long_share: float = 0.5
    """packing=long_documents: share of trainer.sequence_length from which on a document is long; shorter ones fill the
    rows."""
    long_repeats: int = 4
    """packing=long_documents: times that a long document is trained on while each of the others is once."""
    heldout: float = 0.05
    """Fraction of documents (by hash of their key) kept for evaluation."""
    cache_dir: str | None = None
    """Where tokenised shards are kept; None means $ARCFORGE_CACHE or ~/.cache/arcforge."""

    def __post_init__(self) -> None:
        check_choice("data.packing", self.packing, ("sequential", "best_fit", "long_documents"))
        if not 0.0 < self.long_share <= 1.0:
            raise ConfigError("data.long_share", self.long_share, "must be above 0 and at most 1")
        check_at_least("data.long_repeats", self.long_repeats, 1)
        for name in ("long_share", "long_repeats"):
            if self.packing != "long_documents" and getattr(self, name) != getattr(DataConfig, name):
                raise ConfigError(f"data.{name}", getattr(self, name), "has an effect with packing=long_documents only")
        check_between("data.heldout", self.heldout, 0.0, 0.5)


@dataclass
class MtpConfig:
    """Multi-token prediction: `depths` steps that share one module (spec 1.6)."""

    depths: int = 3
    """Predicted tokens beyond the next; 0 builds no MTP module."""
    fraction: float = 0.25
    """Fraction of the tokens (whole documents) that carry the MTP loss."""
    weight: float = 0.3
    """Weight of the mean loss over depths."""

    def __post_init__(self) -> None:
        check_at_least("model.mtp.depths", self.depths, 0)
        check_between("model.mtp.fraction", self.fraction, 0.0, 1.0)
        check_at_least("model.mtp.weight", self.weight, 0.0)


@dataclass
class RopeScalingConfig:
    """Stretching of the rotary frequencies to longer contexts; fields are those of Hugging Face's `rope_parameters`."""

    type: str = "default"
    """``default`` stretches nothing; ``llama3`` and ``yarn`` divide the low frequencies by `factor`."""
    factor: float = 1.0
    original_max_position_embeddings: int = 8192
    """Context length of the training before the stretch."""
    low_freq_factor: float = 1.0
    """llama3: fewer turns than this over the original context are divided wholly."""
    high_freq_factor: float = 4.0
    """llama3: more turns than this are left alone."""
    beta_slow: float = 1.0
    """yarn: as low_freq_factor."""
    beta_fast: float = 32.0
    """yarn: as high_freq_factor."""
    attention_factor: float | None = None
    """yarn: factor of the rotated values; None derives it from factor, mscale and mscale_all_dim."""
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    """yarn: MLA also multiplies its softmax scale by ``(0.1 mscale_all_dim ln(factor) + 1)²``."""

    def __post_init__(self) -> None:
        check_choice("model.rope_scaling.type", self.type, ("default", "llama3", "yarn"))
        check_at_least("model.rope_scaling.factor", self.factor, 1.0)
        check_at_least("model.rope_scaling.original_max_position_embeddings", self.original_max_position_embeddings, 1)
        for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            if not 0 < getattr(self, low) < getattr(self, high):
                accepted = f"must be above 0 and below {high}={getattr(self, high)}"
                raise ConfigError(f"model.rope_scaling.{low}", getattr(self, low), accepted)
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            check_at_least(f"model.rope_scaling.{name}", getattr(self, name), 0.0)


@dataclass
class ModelConfig:
    """Sizes of a GLM-5-shaped model; names are those of Hugging Face's ``config.json`` where it has one."""

    name: str = MISSING
    vocab_size: int = MISSING
    hidden_size: int = MISSING
    num_hidden_layers: int = MISSING
    first_k_dense_replace: int = MISSING
    """Leading layers with a dense feed-forward; the others are mixtures of experts."""
    intermediate_size: int = MISSING
    moe_intermediate_size: int = MISSING
    n_routed_experts: int = MISSING
    num_experts_per_tok: int = MISSING
    n_shared_experts: int = 1
    routed_scaling_factor: float = 2.5
    n_group: int = 1
    """Groups of experts; a token chooses among the experts of its `topk_group` best groups."""
    topk_group: int = 1
    num_attention_heads: int = MISSING
    num_key_value_heads: int = MISSING
    """Key/value heads of GQA; MLA has one latent for all heads."""
    head_dim: int = MISSING
    """Head size of GQA."""
    q_lora_rank: int = MISSING
    kv_lora_rank: int = MISSING
    qk_nope_head_dim: int = MISSING
    qk_rope_head_dim: int = MISSING
    v_head_dim: int = MISSING
    index_n_heads: int = MISSING
    index_head_dim: int = MISSING
    index_topk: int = MISSING
    rope_theta: float = 1_000_000.0
    rope_scaling: RopeScalingConfig = field(default_factory=RopeScalingConfig)
    max_position_embeddings: int = MISSING
    rms_norm_eps: float = 1e-5
    latent_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    router_bias_rate: float = 1e-3
    """Step of the loss-free balance update of the router bias."""
    balance_loss_weight: float = 1e-4
    """Weight of the sequence-level balance loss."""
    mtp: MtpConfig = field(default_factory=MtpConfig)

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size hidden_size num_hidden_layers intermediate_size moe_intermediate_size n_routed_experts "
            "num_experts_per_tok num_attention_heads num_key_value_heads head_dim q_lora_rank kv_lora_rank "
            "qk_nope_head_dim v_head_dim index_n_heads index_head_dim index_topk max_position_embeddings"
        )
        for name in sizes.split():
            check_at_least(f"model.{name}", getattr(self, name), 1)
        check_at_least("model.first_k_dense_replace", self.first_k_dense_replace, 0)
        check_at_least("model.n_shared_experts", self.n_shared_experts, 0)
        for name in ("rms_norm_eps", "latent_norm_eps", "initializer_range", "router_bias_rate", "rope_theta"):
            check_at_least(f"model.{name}", getattr(self, name), 0.0)
        check_at_least("model.balance_loss_weight", self.balance_loss_weight, 0.0)
        if self.first_k_dense_replace > self.num_hidden_layers:
            raise ConfigError(
                "model.first_k_dense_replace",
                self.first_k_dense_replace,
                f"must be at most num_hidden_layers={self.num_hidden_layers}",
            )
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ConfigError(
                "model.num_experts_per_tok",
                self.num_experts_per_tok,
                f"must be at most n_routed_experts={self.n_routed_experts}",
            )
        self._check_groups()
        if self.qk_rope_head_dim % 2 or self.qk_rope_head_dim < 2:
            raise ConfigError("model.qk_rope_head_dim", self.qk_rope_head_dim, "must be even and at least 2")

    def _check_groups(self) -> None:
        """A group is judged by its two best experts, and the chosen groups must hold enough experts."""
        check_at_least("model.n_group", self.n_group, 1)
        check_between("model.topk_group", self.topk_group, 1, self.n_group)
        if self.n_group == 1:
            return
        if self.n_routed_experts % self.n_group or self.n_routed_experts < 2 * self.n_group:
            accepted = f"must divide n_routed_experts={self.n_routed_experts} into groups of at least two"
            raise ConfigError("model.n_group", self.n_group, accepted)
        if self.topk_group * (self.n_routed_experts // self.n_group) < self.num_experts_per_tok:
            accepted = f"must hold num_experts_per_tok={self.num_experts_per_tok} experts"
            raise ConfigError("model.topk_group", self.topk_group, accepted)


@dataclass
class StepsConfig:
    """How optimizer steps are taken, whatever is learnt. `extra` goes to `lightning.Trainer` as it is."""

    max_steps: int | None = None
    """Steps; the run ends at the first limit reached."""
    minutes: float | None = None
    """Minutes of training; progress of the schedule is the larger of steps and time used."""
    micro_batch_tokens: int = 4096
    """Tokens of one forward and backward pass."""
    precision: str = "auto"
    """``bf16`` computes in bfloat16 with float32 weights; ``fp32``; ``auto`` takes bf16 where it is the faster."""
    clip_norm: float = 1.0
    """Gradient norm limit; 0 switches clipping off."""
    trainable: list[str] = field(default_factory=list)
    """Regular expressions: only parameters in whose names one is found are trained; empty trains all."""
    activation_checkpointing: bool = False
    deterministic: bool = False
    """Compute a sequence's logits to the same bits whatever else is in the batch, cached or not; slower."""
    eval_every: int = 100
    """Steps between evaluations; one at the end always."""
    checkpoint_every: int = 200
    """Steps between checkpoints; one at the end always."""
    keep_checkpoints: int = 2
    """Checkpoints kept, the last ones."""
    checkpoint_async: bool | None = None
    """Write checkpoints from a copy in host memory while training goes on; None does so on an accelerator."""
    threads: int | None = None
    """CPU threads of each process; None shares all cores of this machine among its processes."""
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("trainer.precision", self.precision, ("auto", "bf16", "fp32"))
        for name in (
            "max_steps",
            "micro_batch_tokens",
            "eval_every",
            "checkpoint_every",
            "keep_checkpoints",
            "threads",
        ):
            check_at_least(f"trainer.{name}", getattr(self, name), 1)
        check_at_least("trainer.clip_norm", self.clip_norm, 0.0)
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError("trainer.minutes", self.minutes, "must be greater than 0")
        check_expressions("trainer.trainable", self.trainable)


@dataclass
class TrainerConfig(StepsConfig):
    """How to train on text; ``micro_batch_tokens`` is a multiple of ``sequence_length``."""

    sequence_length: int = 512
    accumulate: int = 1
    """Micro-batches per optimizer step; losses are weighted by tokens across them."""
    log_every: int = 10
    """Steps between rows of metrics."""
    eval_tokens: int = 65536
    """Held-out tokens of an evaluation during the run at most; the last one takes them all."""
    keep_best: bool = True
    """Also save whenever held-out text improves, and keep the best checkpoint."""
    samples: int = 4
    """Texts generated before and after training for the report."""
    python_functions: int = 0
    """Python functions sampled and parsed before and after training; for corpora of Python code."""
    mtp_acceptance: int = 0
    """Held-out positions at which the MTP module drafts after training, to count what the main model accepts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("accumulate", "sequence_length", "log_every", "eval_tokens"):
            check_at_least(f"trainer.{name}", getattr(self, name), 1)
        for name in ("samples", "python_functions", "mtp_acceptance"):
            check_at_least(f"trainer.{name}", getattr(self, name), 0)
        check_multiple("trainer.micro_batch_tokens", self.micro_batch_tokens, "sequence_length", self.sequence_length)


ADAPTED = (r"\.self_attn\.", r"\.mlp\.")
"""Where adapters go unless other layers are named."""


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
    """Regular expressions: linear layers and stacks of experts in whose names one is found are adapted."""

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
                raise ConfigError(f"adapter.{entry.name}", value, "has an effect with adapter=lora only")


@dataclass
class PlayConfig:
    """How conversations are played: a model answers, its calls are run, its answers checked."""

    prefix: ClassVar[str] = ""
    """Where the fields stand on a command line, for errors."""

    files: list[str] = field(default_factory=list)
    """Files and folders of conversations with checkers, e.g. ``outputs/conversations/heldout``."""
    limit: int | None = None
    """Conversations of each source at most, drawn by the seed; None takes all."""
    max_new_tokens: int = 256
    """Tokens of one message of the model at most."""
    max_calls: int = 8
    """Messages with tool calls before an answer at most."""
    temperature: float = 0.0
    """0 is greedy."""
    seed: int = 0
    batch_size: int = 128
    """Conversations under way at the same time."""
    engine: str | None = None
    """A component of kind engine with its defaults; None is ``paged`` where it is installed, else ``simple``."""
    toolbox: str | None = None
    """What runs tool calls, a component of kind toolbox with its defaults; None is ``sandbox`` where it is installed,
    else ``recorded``."""

    def __post_init__(self) -> None:
        for name in ("limit", "max_new_tokens", "batch_size"):
            check_at_least(f"{self.prefix}{name}", getattr(self, name), 1)
        for name in ("max_calls", "temperature", "seed"):
            check_at_least(f"{self.prefix}{name}", getattr(self, name), 0)


@dataclass
class GenerationConfig(PlayConfig):
    """Evaluation by generation in a training run; without `files` there is none."""

    prefix: ClassVar[str] = "generation."

    every: int | None = None
    """Steps between evaluations; None evaluates at the end only."""
    before: bool = True
    """Also play before the first step, for figures of what the run begins with."""
    samples: int = 3
    """Conversations of each source that the report shows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("generation.every", self.every, 1)
        check_at_least("generation.samples", self.samples, 0)


@dataclass
class RunConfig:
    """What every run that takes optimizer steps has."""

    optimizer: OptimizerConfig = MISSING
    schedule: ScheduleConfig = MISSING
    hardware: HardwareConfig = MISSING
    trainer: StepsConfig = field(default_factory=StepsConfig)
    name: str = "train"
    """Name of the run, part of its folder's name."""
    seed: int = 0
    init: str | None = None
    """Checkpoint whose weights the run begins with, and whose tokenizer it uses: a run's folder or a model's."""
    resume: str | None = None
    """``latest``, the folder of a run to go on with, or one of its checkpoints."""
    output_dir: str = "outputs"

    def __post_init__(self) -> None:
        check_at_least("seed", self.seed, 0)


@dataclass
class TrainConfig(RunConfig):
    """The root of ``arcforge-train``. The attention may be a variant that can start from that of `init`."""

    attention: AttentionConfig = MISSING
    model: ModelConfig = MISSING
    data: DataConfig = MISSING
    procedure: ProcedureConfig = MISSING
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.trainer, TrainerConfig) and isinstance(self.model, ModelConfig):
            limit, length = self.model.max_position_embeddings, self.trainer.sequence_length
            if self.trainer.max_steps is None and self.trainer.minutes is None:
                raise ConfigError("trainer.max_steps", None, "set max_steps, minutes, or both")
            if length > limit:
                accepted = f"the model allows at most max_position_embeddings={limit}"
                raise ConfigError("trainer.sequence_length", length, accepted)
            if self.trainer.mtp_acceptance and not self.model.mtp.depths:
                accepted = "must be 0: with model.mtp.depths=0 there is no MTP module"
                raise ConfigError("trainer.mtp_acceptance", self.trainer.mtp_acceptance, accepted)
            if self.trainer.trainable and self.adapter.name != "none":
                accepted = f"adapter={self.adapter.name} trains adapters alone: name what gets one in adapter.targets"
                raise ConfigError("trainer.trainable", self.trainer.trainable, accepted)


@dataclass
class EvalConfig:
    """The root of ``arcforge-eval``."""

    suite: SuiteConfig = MISSING
    checkpoint: str | None = None
    """A run's folder, ``outputs/latest``, or a folder in Hugging Face's format."""
    data: DataConfig = MISSING
    """Whose held-out documents are used."""
    hardware: HardwareConfig = MISSING
