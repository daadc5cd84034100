"""Schemas of this package's components and commands; torch-free. Sizes stand in the model section."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from omegaconf import MISSING

from arcforge_core.config.schema import (
    AttentionConfig,
    DataConfig,
    HardwareConfig,
    ProcedureConfig,
    check_at_least,
    check_between,
    check_choice,
)
from arcforge_core.data.needles import EVALUATION_DEPTHS
from arcforge_core.errors import ConfigError
from arcforge_core.eval.long_context.tasks import TASKS


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
    """Grouped-query attention of which some layers are replaced by something cheaper."""

    letter: ClassVar[str] = ""
    pattern: str = ""
    """A letter for each layer, or a few that are repeated: F is full attention, the variant's own letter a replaced
    layer. The MTP module is like the last layer."""

    def __post_init__(self) -> None:
        if not self.pattern or set(self.pattern) - {"F", self.letter}:
            accepted = f"must be letters F (full attention) and {self.letter} ({self.name}), e.g. {self.letter}F"
            raise ConfigError("attention.pattern", self.pattern, accepted)

    def check_pattern(self, num_layers: int) -> None:
        """Raises `ConfigError` unless the pattern covers so many layers."""
        if num_layers % len(self.pattern):
            accepted = (
                f"has {len(self.pattern)} letters: must have one per layer, model.num_hidden_layers={num_layers}, "
                "or a number that divides it"
            )
            raise ConfigError("attention.pattern", self.pattern, accepted)

    def is_full(self, layer_index: int, num_layers: int) -> bool:
        """Says whether a layer keeps full attention."""
        return self.pattern[min(layer_index, num_layers - 1) % len(self.pattern)] == "F"


@dataclass
class SwaConfig(HybridConfig):
    """Layers that see a window only, in turn with full ones."""

    letter: ClassVar[str] = "S"
    name: str = "swa"
    pattern: str = "SF"
    window: int = 128
    """Keys that a query of an S layer sees, its own included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("attention.window", self.window, 1)

    def window_of(self, layer_index: int, num_layers: int) -> int | None:
        """Returns the keys that a layer's queries see; None is all of them."""
        return None if self.is_full(layer_index, num_layers) else self.window


@dataclass
class SwaPatternConfig(SwaConfig):
    """Windows in the layers that a search (``arcforge-swa-search``) has found to need no more."""

    name: str = "swa_pattern"
    pattern: str = ""

    def __post_init__(self) -> None:
        if self.pattern:  # else it is still to be searched
            super().__post_init__()

    def check_pattern(self, num_layers: int) -> None:
        """Raises `ConfigError` unless the pattern has one letter per layer: it was searched for them."""
        if num_layers != len(self.pattern):
            accepted = (
                f"has {len(self.pattern)} letters: must have one per layer, model.num_hidden_layers={num_layers}, "
                "as arcforge-swa-search finds them"
            )
            raise ConfigError("attention.pattern", self.pattern, accepted)


@dataclass
class GdnConfig(HybridConfig):
    """Gated DeltaNet in turn with full attention; `qk_norm` and `bias` are those of the full layers."""

    letter: ClassVar[str] = "L"
    name: str = "gdn"
    pattern: str = "LF"
    """F is full attention, L a linear layer: one letter for each layer, or a few that are repeated."""


@dataclass
class SimpleGdnConfig(HybridConfig):
    """The delta rule on the projections of grouped-query attention, in turn with full attention (spec 3.5).

    The paper gives no equations: `decay`, `beta` and `rope` are ours.
    """

    letter: ClassVar[str] = "L"
    name: str = "simple_gdn"
    pattern: str = "LF"
    """F is full attention, L a linear layer: one letter for each layer, or a few that are repeated."""
    decay: str = "none"
    """``none``: a token is overwritten, never forgotten; ``fixed``: heads forget with half-lives from 32 to 32768
    tokens, spread geometrically."""
    beta: float = 1.0
    """How far a token corrects what its key reads: 1 replaces it. In (0, 1]."""
    rope: bool = True
    """Rotates queries and keys as the full layers do, from which they may come."""

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
    """``auto`` absorbs for few-token steps behind a cache and expands otherwise; ``expanded`` and ``absorbed`` force
    one form, for checks."""
    latent_cache: str = "auto"
    """Number format of cached latents: ``auto``, the model's; ``int8``, rotated by a Hadamard matrix before and with a
    scale for each token, the rope part in bfloat16. Half of bfloat16's memory; steps take longer, as entries are made
    wide again."""

    def __post_init__(self) -> None:
        check_choice("attention.latent_cache", self.latent_cache, ("auto", "int8"))
        check_choice("attention.form", self.form, ("auto", "expanded", "absorbed"))


@dataclass
class DsaConfig(MlaConfig):
    """DeepSeek sparse attention: a lightning indexer picks `model.index_topk` keys for every query."""

    name: str = "dsa"
    index_relu: bool = True
    """ReLU on the indexer's dot products."""
    indexer_training: str = "off"
    """What the indexer learns from: ``off``, nothing; ``dense``, warm-up: attention stays dense and the target is all
    of it; ``sparse``: the attention over the selected keys. `stage=dsa_warmup` and `stage=dsa_sparse` set it."""
    indexer_loss_weight: float = 1.0
    """Weight of the indexer's loss, the mean over tokens and layers. Nothing but the indexer feels it."""
    recall_queries: int = 64
    """While it learns: queries of a batch on which is measured how much of the attention the indexer's choice holds
    (``indexer_recall``); 0 measures nothing."""
    index_cache: str = "auto"
    """Number format of cached index keys: ``auto``, the model's; ``bf16`` halves what a decoded token reads of a long
    cache, and near-ties may be selected otherwise; ``int8``, rotated by a Hadamard matrix before and with a scale for
    each key, takes a quarter and somewhat more."""
    indexer_types: list[str] = field(default_factory=list)
    """For every layer ``full`` (selects keys with an indexer of its own) or ``shared`` (takes those of the layer before
    and has no indexer); empty makes every layer full. The MTP module is always full."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("attention.indexer_training", self.indexer_training, ("off", "dense", "sparse"))
        check_choice("attention.index_cache", self.index_cache, ("auto", "bf16", "int8"))
        check_at_least("attention.indexer_loss_weight", self.indexer_loss_weight, 0.0)
        check_at_least("attention.recall_queries", self.recall_queries, 0)
        for layer, kind in enumerate(self.indexer_types):
            check_choice(f"attention.indexer_types[{layer}]", kind, ("full", "shared"))
        if self.indexer_types[:1] == ["shared"]:
            raise ConfigError("attention.indexer_types[0]", "shared", "must be full: no layer before it selects keys")

    def is_shared(self, layer_index: int) -> bool:
        """Says whether a layer takes the selection of the one before; the MTP module's index is past the end."""
        return self.indexer_types[layer_index : layer_index + 1] == ["shared"]


@dataclass
class AblationConfig(ProcedureConfig):
    """Variants at equal budgets, each from a dense base of its seed (spec 3.5)."""

    name: str = "attention_ablation"
    base_steps: int = 2600
    """Steps of the dense base, which the variants of a seed share."""
    further_steps: int = 130
    """Steps of every variant after its conversion."""
    further_rate: float = 0.1
    """Learning rates of these steps, as a share of the base's peak rates."""
    warmup_share: float = 0.3
    """DSA: share of the further steps in which only the indexer learns."""
    warmup_rate: float = 4.0
    """DSA: learning rates of these, as a share of the base's peak rates."""
    window: int | None = 16
    """Keys that windows show in this comparison; None leaves ``attention.window``."""
    interleave: str | None = "FS"
    """Layers of ``swa`` in this comparison, as ``attention.pattern``, which None leaves. Which of the layers in turn
    are full decides what is lost: those that find a key again are seldom the first."""
    tasks: list[str] = field(default_factory=lambda: ["single", "multi_key"])
    """Tasks of the long-context evaluation."""
    lengths: list[int] = field(default_factory=lambda: [320, 352])
    """Tokens of the examples: at least four times model.index_topk and eight times the window."""
    depths: list[float] = field(default_factory=lambda: [0.1, 0.3, 0.5, 0.7, 0.9])
    samples: int = 20
    """Examples of each task, length and depth."""
    search_samples: int = 4
    """As many to score a pattern of windows while it is searched."""

    def __post_init__(self) -> None:
        for name in ("base_steps", "samples", "search_samples", "window"):
            check_at_least(f"procedure.{name}", getattr(self, name), 1)
        if self.interleave is not None and (not self.interleave or set(self.interleave) - {"F", "S"}):
            accepted = "must be letters F (full attention) and S (a window), e.g. FS, or null"
            raise ConfigError("procedure.interleave", self.interleave, accepted)
        check_at_least("procedure.further_steps", self.further_steps, 2)
        check_between("procedure.warmup_share", self.warmup_share, 0.0, 1.0)
        if not 1 <= round(self.warmup_share * self.further_steps) < self.further_steps:
            accepted = f"must leave steps of further_steps={self.further_steps} to both stages"
            raise ConfigError("procedure.warmup_share", self.warmup_share, accepted)
        for name in ("further_rate", "warmup_rate"):
            check_at_least(f"procedure.{name}", getattr(self, name), 0.0)
        check_grid("procedure.", self.tasks, self.lengths, self.depths)


@dataclass
class SwaSearchConfig:
    """The root of ``arcforge-swa-search``."""

    data: DataConfig = MISSING
    """Whose held-out documents fill the prompts."""
    hardware: HardwareConfig = MISSING
    checkpoint: str | None = None
    """A run's folder, ``outputs/latest``, or a model's folder; its attention is gqa, swa or swa_pattern."""
    window: int = 128
    """Keys that a query of an S layer sees, its own included."""
    window_layers: int | None = None
    """Layers that get a window in the end; None takes half of them, rounded down."""
    beam: int = 8
    """Patterns that are kept after each step."""
    layers_per_step: int = 2
    """Layers that get a window in each step; the last step takes what is left."""
    tasks: list[str] = field(default_factory=lambda: list(TASKS))
    """Of ``arcforge-eval suite=long_context``, as are the next four."""
    lengths: list[int] = field(default_factory=lambda: [512])
    depths: list[float] = field(default_factory=lambda: [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    samples: int = 2
    seed: int = 0
    output: str | None = None
    """Folder of the result, gone on with when it has one; None takes one below outputs/swa_search."""

    def __post_init__(self) -> None:
        if self.checkpoint is None:
            raise ConfigError("checkpoint", None, "a run or a model must be named, as checkpoint=outputs/latest")
        for name in ("window", "window_layers", "beam", "layers_per_step", "samples"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("seed", self.seed, 0)
        check_grid("", self.tasks, self.lengths, self.depths)


def check_grid(section: str, tasks: list[str], lengths: list[int], depths: list[float]) -> None:
    """Raises `ConfigError` for a long-context evaluation that cannot be."""
    for name, values in (("tasks", tasks), ("lengths", lengths), ("depths", depths)):
        if not values:
            raise ConfigError(f"{section}{name}", [], "must name at least one")
    for task in tasks:
        check_choice(f"{section}tasks", task, TASKS)
    for depth in depths:
        if depth not in EVALUATION_DEPTHS:
            raise ConfigError(f"{section}depths", depth, "must be one of 0, 0.1, 0.2, ..., 1")
