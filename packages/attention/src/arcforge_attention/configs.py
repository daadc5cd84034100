"""Schemas of this package's components; torch-free. Sizes stand in the model section."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcforge_core.config.schema import AttentionConfig, check_choice
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
    indexer_types: list[str] = field(default_factory=list)
    """For every layer ``full`` (selects keys with an indexer of its own) or ``shared`` (takes those of the layer before
    and has no indexer); empty makes every layer full. The MTP module is always full."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for layer, kind in enumerate(self.indexer_types):
            check_choice(f"attention.indexer_types[{layer}]", kind, ("full", "shared"))
        if self.indexer_types[:1] == ["shared"]:
            raise ConfigError("attention.indexer_types[0]", "shared", "must be full: no layer before it selects keys")

    def is_shared(self, layer_index: int) -> bool:
        """Says whether a layer takes the selection of the one before; the MTP module's index is past the end."""
        return self.indexer_types[layer_index : layer_index + 1] == ["shared"]
