"""The quantizer ``quarot``: transforms and rounds a checkpoint, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from arcforge_core.checkpoint.pretrained import Checkpoint
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.model.adapt.quantised import MODES
from arcforge_core.ops.quant import Format, Quantised, quantise
from arcforge_hw.quantization.configs import QuarotConfig
from arcforge_hw.quantization.recipe import chosen_formats
from arcforge_hw.quantization.rounding import ssz
from arcforge_hw.quantization.transform import PIECE, Transform, TransformedState


@dataclass(frozen=True)
class Quarot:
    """One checkpoint's quantisation.

    Attributes:
        state: the transformed tensors.
        model: sizes of the transformed model.
        formats: by name of each quantised weight.
        rounds: whether activations are rounded.
        section: all that a reader needs to transform an update likewise; see `arrival`.
    """

    config: QuarotConfig
    state: TransformedState
    model: ModelConfig
    formats: dict[str, Format]
    rounds: bool
    section: dict[str, Any]

    @classmethod
    def build(cls, config: QuarotConfig, opened: Checkpoint) -> Quarot:
        """Checks the recipe against a checkpoint; reads no tensor.

        Raises:
            ConfigError: an attention without rules, or the recipe does not fit; see `chosen_formats`.
        """
        seed = config.seed if config.rotate else None
        untied = opened.config.tie_word_embeddings and MODES[config.weights].head is not None
        transform = Transform(opened.config, opened.attention, seed, untied=untied)
        state = transform.of(opened.state)
        formats = chosen_formats(state.shapes, config.weights, config.keep)
        section = {"quantizer": config.name, "seed": seed, "tied": opened.config.tie_word_embeddings}
        return cls(config, state, transform.transformed, formats, MODES[config.weights].rounds, section)

    def round(self, name: str, weight: Tensor) -> Quantised:
        """Returns the integers of a transformed weight, by the weight alone."""
        form, rows = self.formats[name], weight.flatten(0, -2)
        count = max(1, PIECE // weight.shape[-1])
        parts = [self._rounded(rows[start : start + count], form) for start in range(0, len(rows), count)]
        values, scale = (torch.cat(each).view(*weight.shape[:-1], -1) for each in zip(*parts, strict=True))
        return Quantised(values, scale)

    def _rounded(self, weight_NK: Tensor, form: Format) -> Quantised:
        nearest = self.config.rounding == "nearest"
        return quantise(weight_NK, form) if nearest else ssz(weight_NK, form, self.config.steps)

    @staticmethod
    def arrival(
        folder: Path, section: Mapping[str, Any], config: ModelConfig, attention: AttentionConfig
    ) -> tuple[ModelConfig, Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]]:
        """Returns the original model's sizes, and what an update of its weights passes before it is rounded.

        Args:
            folder: the quantised checkpoint.
            section: of its ``quantization_config``.
            config, attention: the transformed model.
        """
        seed = section["seed"]
        tied = bool(section["tied"]) or config.tie_word_embeddings
        mtp = replace(config.mtp, rotated=False) if seed is not None else config.mtp
        original = replace(config, tie_word_embeddings=tied, mtp=mtp)
        found = load_file(folder / str(section["factors"])) if section.get("factors") else {}
        transform = Transform(original, attention, seed, found, untied=tied and not config.tie_word_embeddings)

        def prepare(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            made = transform.of(state)
            return {name: made.unrounded(name) for name in made}

        return original, prepare
