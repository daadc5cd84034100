"""The quantizer ``calibrated``: as ``quarot``, with smoothing factors fitted to what layers read in calibration text.

Shapes: E experts, F their width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file

from arcforge_core.checkpoint.shards import save_tensors
from arcforge_core.config.schema import DataConfig
from arcforge_core.console.progress import say
from arcforge_core.errors import ConfigError
from arcforge_hw.quantization.configs import CalibratedConfig
from arcforge_hw.quantization.quarot import Quarot
from arcforge_hw.quantization.readers import PLACES, LayerReaders
from arcforge_hw.quantization.rotations import form_of
from arcforge_hw.quantization.smoothing import Choice, Reader, search
from arcforge_hw.quantization.text import calibration_rows
from arcforge_hw.quantization.walk import Walk

FACTORS = "smoothing_factors.safetensors"
"""Smoothing factors of a quantised checkpoint, which updates of its weights pass through on arrival."""


@dataclass(frozen=True)
class Calibrated(Quarot):
    """One checkpoint's quantisation with calibration text."""

    def calibration(self, data: DataConfig, source: Path, work: Path) -> Calibration:
        """Reads the text and returns the walk through the layers; `work` need not exist yet.

        Args:
            data: the corpus.
            source: the checkpoint.
            work: the folder of the unfinished result, which keeps hidden states and factors.

        Raises:
            ConfigError: the model has fewer positions than a row, or as `calibration_rows`.
            DataError: the corpus cannot be read.
        """
        config, limit = cast(CalibratedConfig, self.config), self.model.max_position_embeddings
        if config.sequence_length > limit:
            accepted = f"the model allows at most {limit} positions"
            raise ConfigError("quantizer.sequence_length", config.sequence_length, accepted)
        rows = calibration_rows(config, data, source, self.model.vocab_size)
        return Calibration(self, Walk(self.state, self.model, self.state.transform.attention, work, rows), work)


@dataclass(frozen=True)
class Calibration:
    """The walk of one command through the layers, in order; each step leaves whole files only.

    Attributes:
        made: the quantizer; its transform's factors grow.
        walk: hidden states.
        work: folder of the factors, a file per layer.
    """

    made: Calibrated
    walk: Walk
    work: Path

    def resume(self) -> None:
        """Reads the factors of the layers that a killed command has finished."""
        for file in sorted(self.work.glob("factors-*.safetensors")):
            self.made.state.transform.factors.update(load_file(file))

    def enter(self, name: str) -> None:
        """Fits the factors of a tensor's layer, before its tensors are made; an interrupted layer starts again."""
        layer = layer_of(name)
        if layer is None:
            return
        prefix, factors = f"model.layers.{layer}", self.made.state.transform.factors
        for place in [place for place in factors if place.startswith(f"{prefix}.")]:
            del factors[place]
        readers = LayerReaders(self.made, prefix, self.walk.layer(layer))
        found = {f"{prefix}.{place}": choice for place, choice in self._fitted(readers)}
        fitted = {place: choice.factors.contiguous() for place, choice in found.items()}
        file = self.work / f"factors-{layer:05d}.safetensors"
        save_tensors(fitted, file.with_suffix(".partial"))
        file.with_suffix(".partial").rename(file)
        factors.update(fitted)
        if before := sum(choice.before for choice in found.values()):
            after = sum(choice.after for choice in found.values())
            say(f"{prefix}: smoothing leaves {after / before:.3f} of the square error of its matrices' outputs")

    def leave(self, name: str) -> None:
        """Removes what a tensor's layer no longer needs; its tensors are on disk."""
        if (layer := layer_of(name)) is not None:
            self.walk.leave(layer)

    def finish(self) -> None:
        """Stores the factors of all layers for `Quarot.arrival`."""
        if factors := self.made.state.transform.factors:
            save_tensors(factors, self.work / FACTORS)
            self.made.section["factors"] = FACTORS

    def clean(self) -> None:
        """Removes the files of the walk."""
        for file in (*self.work.glob("factors-*"), *self.work.glob("hidden-*")):
            file.unlink()

    def _fitted(self, readers: LayerReaders) -> Iterator[tuple[str, Choice]]:
        """Yields the factors of every place of a layer that a quantised matrix reads."""
        config, sizes = cast(CalibratedConfig, self.made.config), self.made.model
        if config.smoothing == "none":
            return
        for place in PLACES:
            grouped = place == "self_attn.value" and form_of(self.made.state.transform.attention) == "gqa"
            groups = sizes.num_key_value_heads if grouped else 1
            repeats = sizes.num_attention_heads // groups if grouped else 1
            rounds = self.made.rounds
            choice = search(readers.of(place), config.smoothing, config.grid, rounds, groups, repeats)
            if choice is not None:
                yield place, choice
        if experts := readers.experts("down_proj"):
            yield "mlp.experts.up", self._fitted_experts(readers.prefix, experts)

    def _fitted_experts(self, prefix: str, experts: list[Reader]) -> Choice:
        """Returns factors [E, F], those of 1 for experts that no token chose."""
        config = cast(CalibratedConfig, self.made.config)
        found = [search([reader], config.smoothing, config.grid, self.made.rounds) for reader in experts]
        reached = [choice for choice in found if choice is not None]
        if missed := len(found) - len(reached):
            say(f"{prefix}: {missed} of {len(found)} experts were chosen by no token of the calibration text")
        ones = torch.ones(experts[0].weight_NK.shape[1])
        factors_EF = torch.stack([ones if choice is None else choice.factors for choice in found])
        return Choice(factors_EF, sum(c.before for c in reached), sum(c.after for c in reached))


def layer_of(name: str) -> int | None:
    """Returns the number of the decoder layer that a tensor belongs to; None for all others."""
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return None if found is None else int(found[1])
