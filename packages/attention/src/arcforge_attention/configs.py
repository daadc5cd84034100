"""Schemas of this package's components; torch-free. Sizes stand in the model section."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.config.schema import AttentionConfig, check_choice


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
