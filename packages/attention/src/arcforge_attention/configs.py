"""Schemas of this package's components and commands; torch-free. Sizes are in the model section."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from omegaconf import MISSING

from arcforge_core.config.schema import (
    AttentionConfig,
    DataConfig,
    HardwareConfig,
    TrainConfig,
    check_at_least,
    check_choice,
    check_minimums,
)
from arcforge_core.configs import EVALUATION_DEPTHS
from arcforge_core.configs import LONG_CONTEXT_TASKS as TASKS
from arcforge_core.errors import ConfigError


@dataclass
class GqaConfig(AttentionConfig):
    """Grouped-query attention."""

    name: str = "gqa"
    qk_norm: bool = False
    """RMSNorm on every head's query and key before the rotation, as in GLM-4.5."""
    bias: bool = False
    """Bias on the query, key and value projections, as in GLM-4.5."""


@dataclass
class HybridConfig(GqaConfig):
    """Grouped-query attention with some layers replaced by cheaper ones."""

    letter: ClassVar[str] = ""
    pattern: str = ""
    """A letter for each layer, or a few that are repeated: F is full attention, the variant's own letter a replaced
    layer. The MTP module uses the type of the last layer."""

    def __post_init__(self) -> None:
        if not self.pattern or set(self.pattern) - {"F", self.letter}:
            accepted = f"must be letters F (full attention) and {self.letter} ({self.name}), e.g. {self.letter}F"
            raise ConfigError("attention.pattern", self.pattern, accepted)

    def check_pattern(self, num_layers: int) -> None:
        """Raises `ConfigError` unless the pattern covers this many layers."""
        if num_layers % len(self.pattern):
            accepted = (
                f"has {len(self.pattern)} letters: must have one per layer, model.num_hidden_layers={num_layers}, "
                "or a number that divides it"
            )
            raise ConfigError("attention.pattern", self.pattern, accepted)

    def is_full(self, layer_index: int, num_layers: int) -> bool:
        """Returns whether a layer keeps full attention."""
        return self.pattern[min(layer_index, num_layers - 1) % len(self.pattern)] == "F"


@dataclass
class SwaConfig(HybridConfig):
    """Sliding-window layers alternating with full attention."""

    letter: ClassVar[str] = "S"
    name: str = "swa"
    pattern: str = "SF"
    window: int = 128
    """Keys visible to a query of an S layer, including its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("attention.window", self.window, 1)

    def window_of(self, layer_index: int, num_layers: int) -> int | None:
        """Returns the number of keys visible to a layer's queries; None for all."""
        return None if self.is_full(layer_index, num_layers) else self.window


@dataclass
class SwaPatternConfig(SwaConfig):
    """Windows in the layers selected by a search (``arcforge-swa-search``)."""

    name: str = "swa_pattern"
    pattern: str = ""

    def __post_init__(self) -> None:
        if self.pattern:  # empty until it is searched
            super().__post_init__()

    def check_pattern(self, num_layers: int) -> None:
        """Raises `ConfigError` unless the pattern has exactly one letter per layer, as searched patterns do."""
        if num_layers != len(self.pattern):
            accepted = (
                f"has {len(self.pattern)} letters: must have one per layer, model.num_hidden_layers={num_layers}, "
                "as in the output of arcforge-swa-search"
            )
            raise ConfigError("attention.pattern", self.pattern, accepted)


@dataclass
class GdnConfig(HybridConfig):
    """Gated DeltaNet alternating with full attention; `qk_norm` and `bias` apply to the full layers."""

    letter: ClassVar[str] = "L"
    name: str = "gdn"
    pattern: str = "LF"
    """F is full attention, L a linear layer: one letter for each layer, or a few that are repeated."""


@dataclass
class SimpleGdnConfig(HybridConfig):
    """The delta rule on the projections of grouped-query attention, alternating with full attention (spec 3.5).

    The paper gives no equations: `decay`, `beta` and `rope` are choices of this implementation.
    """

    letter: ClassVar[str] = "L"
    name: str = "simple_gdn"
    pattern: str = "LF"
    """F is full attention, L a linear layer: one letter for each layer, or a few that are repeated."""
    decay: str = "none"
    """``none``: tokens are overwritten but never decay; ``fixed``: heads decay with half-lives from 32 to 32768 tokens,
    spaced geometrically."""
    beta: float = 1.0
    """Strength of a token's correction of the value at its key: 1 replaces the value. In (0, 1]."""
    rope: bool = True
    """Rotates queries and keys like the full layers, whose weights they may start from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("attention.decay", self.decay, ("none", "fixed"))
        if not 0.0 < self.beta <= 1.0:
            raise ConfigError(
                "attention.beta", self.beta, "must be in (0, 1]: above 1 the state may grow without bound"
            )


@dataclass
class MlaConfig(AttentionConfig):
    """Multi-head latent attention."""

    name: str = "mla"
    form: str = "auto"
    """``auto`` takes the absorbed form for few-token steps with a cache, otherwise the expanded one; ``expanded`` and
    ``absorbed`` force one form, for tests."""
    latent_cache: str = "auto"
    """Number format of cached latents: ``auto``, the model's; ``int8``, rotated by a Hadamard matrix and quantised with
    one scale per token, the rope part in bfloat16. Half of bfloat16's memory; steps are slower, because entries are
    dequantised."""
    step: str = "auto"
    """A step of few tokens in a layer without an indexer: ``auto``, by the chip's op for the whole layer where it has
    one (`mla_layer`); ``parts``, never."""

    def __post_init__(self) -> None:
        check_choice("attention.step", self.step, ("auto", "parts"))
        check_choice("attention.latent_cache", self.latent_cache, ("auto", "int8"))
        check_choice("attention.form", self.form, ("auto", "expanded", "absorbed"))


@dataclass
class DsaConfig(MlaConfig):
    """DeepSeek sparse attention: a lightning indexer selects `model.index_topk` keys for every query."""

    name: str = "dsa"
    index_relu: bool = True
    """ReLU on the indexer's dot products."""
    indexer_training: str = "off"
    """Training target of the indexer: ``off``, none; ``dense``, warm-up: attention stays dense and the target is the
    attention over all keys; ``sparse``: the attention over the selected keys. Set by `stage=dsa_warmup` and
    `stage=dsa_sparse`."""
    indexer_loss_weight: float = 1.0
    """Weight of the indexer's loss, the mean over tokens and layers. Only the indexer gets a gradient from it."""
    recall_queries: int = 64
    """Number of queries of a batch on which training measures the share of the attention mass that the selected keys
    hold (``indexer_recall``); 0 disables the measurement."""
    index_cache: str = "auto"
    """Number format of cached index keys: ``auto``, the model's; ``bf16`` halves the bytes that a decoded token reads
    from a long cache, but near-ties may be selected differently; ``int8``, rotated by a Hadamard matrix and quantised
    with one scale per key, needs slightly more than a quarter."""
    indexer_types: list[str] = field(default_factory=list)
    """For every layer ``full`` (selects keys with its own indexer) or ``shared`` (uses the selection of the previous
    layer and has no indexer); empty makes every layer full. The MTP module is always full."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("attention.indexer_training", self.indexer_training, ("off", "dense", "sparse"))
        check_choice("attention.index_cache", self.index_cache, ("auto", "bf16", "int8"))
        check_minimums(self, "attention", indexer_loss_weight=0.0, recall_queries=0)
        for layer, kind in enumerate(self.indexer_types):
            check_choice(f"attention.indexer_types[{layer}]", kind, ("full", "shared"))
        if self.indexer_types[:1] == ["shared"]:
            raise ConfigError("attention.indexer_types[0]", "shared", "must be full: no earlier layer selects keys")

    def is_shared(self, layer_index: int) -> bool:
        """Returns whether a layer uses the previous layer's selection; the MTP module's index is past the end."""
        return self.indexer_types[layer_index : layer_index + 1] == ["shared"]


@dataclass
class AblationOptions:
    """Variants at equal budgets, each from a dense base of its seed (spec 3.5)."""

    base_steps: int = 2600
    """Steps of the dense base, which the variants of a seed share."""
    further_steps: int = 130
    """Steps of every variant after its conversion; in the first 30% of DSA's only the indexer learns."""
    window: int | None = 16
    """Window size in this comparison; None keeps ``attention.window``."""
    interleave: str | None = "FS"
    """Layers of ``swa`` in this comparison, as ``attention.pattern``; None keeps that. The position of the full layers
    decides how much is lost: retrieval rarely happens in the first layers."""
    tasks: list[str] = field(default_factory=lambda: ["single", "multi_key"])
    """Tasks of the long-context evaluation."""
    lengths: list[int] = field(default_factory=lambda: [320, 352])
    """Lengths of the examples in tokens: at least four times model.index_topk and eight times the window."""
    depths: list[float] = field(default_factory=lambda: [0.1, 0.3, 0.5, 0.7, 0.9])
    samples: int = 20
    """Number of examples per task, length and depth."""
    search_samples: int = 4
    """The same while searching a pattern of windows."""

    def __post_init__(self) -> None:
        check_minimums(self, "ablation", base_steps=1, samples=1, search_samples=1, window=1, further_steps=2)
        if self.interleave is not None and (not self.interleave or set(self.interleave) - {"F", "S"}):
            accepted = "must be letters F (full attention) and S (a window), e.g. FS, or null"
            raise ConfigError("ablation.interleave", self.interleave, accepted)
        check_grid("ablation.", self.tasks, self.lengths, self.depths)


@dataclass
class AblationConfig(TrainConfig):
    """The root of ``arcforge ablation``: the options of a training run, and those of the comparison."""

    ablation: AblationOptions = field(default_factory=AblationOptions)


@dataclass
class SwaSearchConfig:
    """The root of ``arcforge-swa-search``."""

    data: DataConfig = MISSING
    """Data set whose held-out documents fill the prompts."""
    hardware: HardwareConfig = MISSING
    checkpoint: str | None = None
    """A run's folder, ``outputs/latest``, or a model's folder; its attention is gqa, swa or swa_pattern."""
    window: int = 128
    """Keys visible to a query of an S layer, including its own."""
    window_layers: int | None = None
    """Number of layers with a window in the result; None means half of them, rounded down."""
    beam: int = 8
    """Number of patterns kept after each step."""
    layers_per_step: int = 2
    """Number of layers that get a window in each step; the last step takes the rest."""
    tasks: list[str] = field(default_factory=lambda: list(TASKS))
    """As in ``arcforge-eval suite=long_context``, like the next four."""
    lengths: list[int] = field(default_factory=lambda: [512])
    depths: list[float] = field(default_factory=lambda: [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    samples: int = 2
    seed: int = 0
    output: str | None = None
    """Output folder; a search in it is resumed. None creates one below outputs/swa_search."""

    def __post_init__(self) -> None:
        if self.checkpoint is None:
            raise ConfigError("checkpoint", None, "must name a run or a model, e.g. checkpoint=outputs/latest")
        check_minimums(self, "", window=1, window_layers=1, beam=1, layers_per_step=1, samples=1, seed=0)
        check_grid("", self.tasks, self.lengths, self.depths)


def check_grid(section: str, tasks: list[str], lengths: list[int], depths: list[float]) -> None:
    """Raises `ConfigError` for an impossible long-context evaluation."""
    for name, values in (("tasks", tasks), ("lengths", lengths), ("depths", depths)):
        if not values:
            raise ConfigError(f"{section}{name}", [], "must name at least one")
    for task in tasks:
        check_choice(f"{section}tasks", task, TASKS)
    for depth in depths:
        if depth not in EVALUATION_DEPTHS:
            raise ConfigError(f"{section}depths", depth, "must be one of 0, 0.1, 0.2, ..., 1")
