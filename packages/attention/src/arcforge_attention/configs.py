"""Schemas of this package's components; torch-free. Sizes stand in the model section."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcforge_core.config.schema import AttentionConfig, check_at_least, check_choice
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

    def __post_init__(self) -> None:
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
    indexer_types: list[str] = field(default_factory=list)
    """For every layer ``full`` (selects keys with an indexer of its own) or ``shared`` (takes those of the layer before
    and has no indexer); empty makes every layer full. The MTP module is always full."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("attention.indexer_training", self.indexer_training, ("off", "dense", "sparse"))
        check_at_least("attention.indexer_loss_weight", self.indexer_loss_weight, 0.0)
        check_at_least("attention.recall_queries", self.recall_queries, 0)
        for layer, kind in enumerate(self.indexer_types):
            check_choice(f"attention.indexer_types[{layer}]", kind, ("full", "shared"))
        if self.indexer_types[:1] == ["shared"]:
            raise ConfigError("attention.indexer_types[0]", "shared", "must be full: no layer before it selects keys")

    def is_shared(self, layer_index: int) -> bool:
        """Says whether a layer takes the selection of the one before; the MTP module's index is past the end."""
        return self.indexer_types[layer_index : layer_index + 1] == ["shared"]
