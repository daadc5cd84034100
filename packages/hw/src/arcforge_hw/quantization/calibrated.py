"""The quantizer ``calibrated``: as ``quarot``, with smoothing and rounding fitted to what layers read in a text.

Shapes: T tokens, K inputs of a matrix, E experts, F their width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from arcforge_core.checkpoint.shards import save_tensors
from arcforge_core.config.schema import DataConfig
from arcforge_core.console.progress import say
from arcforge_core.errors import ConfigError
from arcforge_core.ops.quant import Quantised
from arcforge_core.ops.reference import rms_norm
from arcforge_core.train import processes
from arcforge_hw.quantization.configs import CalibratedConfig
from arcforge_hw.quantization.flex import EXPERTS_UP, at_place
from arcforge_hw.quantization.gptq import gptq
from arcforge_hw.quantization.quarot import Quarot
from arcforge_hw.quantization.readers import PLACES, LayerReaders
from arcforge_hw.quantization.rotations import form_of
from arcforge_hw.quantization.smoothing import Choice, Reader, search
from arcforge_hw.quantization.text import calibration_rows
from arcforge_hw.quantization.transform import HEAD, NORM
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

    Several processes share the rows of text and the searches; each gets all inputs and all factors.

    Attributes:
        made: the quantizer; its transform's factors grow.
        walk: hidden states.
        work: folder of the factors, a file per layer.
        inputs: for ``rounding=gptq`` the smoothed inputs [T, K] of the current layer's matrices by name; of a stack of
            experts, those of each expert.
    """

    made: Calibrated
    walk: Walk
    work: Path
    inputs: dict[str, list[Tensor]] = field(default_factory=dict)

    def resume(self) -> None:
        """Reads the factors of the layers that a killed command has finished."""
        for file in sorted(self.work.glob("factors-*.safetensors")):
            self.made.state.transform.factors.update(load_file(file))

    def enter(self, name: str) -> None:
        """Fits the factors of a tensor's layer, before its tensors are made; an interrupted layer starts again."""
        layer = layer_of(name)
        self.inputs.clear()
        if layer is None:
            if name in (NORM, HEAD) and HEAD in self.made.formats:
                self._remember(HEAD, self._before_head(), 1.0)
            return
        prefix, factors = f"model.layers.{layer}", self.made.state.transform.factors
        for place in [place for place in factors if place.startswith(f"{prefix}.")]:
            del factors[place]
        readers = LayerReaders(self.made, prefix, self.walk.layer(layer))
        found = {f"{prefix}.{place}": choice for place, choice in self._fitted(readers)}
        fitted = {place: choice.factors.contiguous() for place, choice in found.items()}
        if not fitted:
            return
        factors.update(fitted)
        if not processes.first():
            return
        file = self.work / f"factors-{layer:05d}.safetensors"
        save_tensors(fitted, file.with_suffix(".partial"))
        file.with_suffix(".partial").rename(file)
        if before := sum(choice.before for choice in found.values()):
            after = sum(choice.after for choice in found.values())
            say(f"{prefix}: smoothing leaves {after / before:.3f} of the square error of its matrices' outputs")

    def round(self, name: str, weight: Tensor) -> Quantised:
        """Returns the integers of a transformed weight of the current layer."""
        read, plain = self.inputs.get(name), partial(self.made.round, name)
        if read is None:
            return plain(weight)
        stack = weight if weight.ndim == 3 else weight[None]
        form = self.made.formats[name]
        rounded = [gptq(w, x, form, plain).integers for w, x in zip(stack, read, strict=True)]
        return Quantised(*(torch.stack(parts).view(*weight.shape[:-1], -1) for parts in zip(*rounded, strict=True)))

    def leave(self, name: str) -> None:
        """Removes what a tensor's layer no longer needs; its tensors are on disk."""
        if (layer := layer_of(name)) is not None:
            self.walk.leave(layer)

    def finish(self) -> None:
        """Stores the factors of all layers for `Quarot.arrival`; called in one process."""
        if factors := self.made.state.transform.factors:
            save_tensors(factors, self.work / FACTORS)
            self.made.section["factors"] = FACTORS

    def clean(self) -> None:
        """Removes the files of the walk; called in one process."""
        for file in (*self.work.glob("factors-*"), *self.work.glob("hidden-*")):
            file.unlink()

    def _fitted(self, readers: LayerReaders) -> Iterator[tuple[str, Choice]]:
        """Yields the factors of every place of a layer that a quantised matrix reads, and remembers the inputs."""
        experts = readers.experts("down_proj")
        places = [(place, partial(readers.of, place)) for place in PLACES]
        places += [(EXPERTS_UP, partial(list, [reader])) for reader in experts]
        rank, count = processes.place()
        inputs, mine = [], []
        for number, (place, matrices) in enumerate(places):
            read = matrices()
            if number % count == rank:
                mine.append(self._search(place, read))
            inputs.append([(reader.name, reader.x_TK) for reader in read] if self._remembers() else [])
        choices = processes.whole(mine)
        for read_here, choice in zip(inputs, choices, strict=True):
            for name, x_TK in read_here:
                self._remember(name, x_TK, 1.0 if choice is None else choice.factors_K)
        for (place, _), choice in zip(places[: len(PLACES)], choices, strict=False):
            if choice is not None:
                yield place, choice
        missed = sum(len(reader.x_TK) == 0 for reader in experts)
        if missed and processes.first():
            say(f"{readers.prefix}: {missed} of {len(experts)} experts were chosen by no token of the text")
        if any(choice is not None for choice in choices[len(PLACES) :]):
            yield EXPERTS_UP, _stacked(choices[len(PLACES) :])

    def _search(self, place: str, readers: list[Reader]) -> Choice | None:
        config, sizes = cast(CalibratedConfig, self.made.config), self.made.model
        smoothing = at_place(config.smoothing, place)
        if smoothing == "none":
            return None
        groups = repeats = 1
        if place == "self_attn.value" and form_of(self.made.state.transform.attention) == "gqa":
            groups, repeats = sizes.num_key_value_heads, sizes.num_attention_heads // sizes.num_key_value_heads
        return search(readers, smoothing, config.grid, self.made.rounds, groups, repeats)

    def _remembers(self) -> bool:
        return self.made.config.rounding == "gptq"

    def _remember(self, name: str, x_TK: Tensor, factors_K: Tensor | float) -> None:
        if self._remembers():
            self.inputs.setdefault(name, []).append(x_TK / factors_K)

    def _before_head(self) -> Tensor:
        """Returns the inputs of the head [T, D]."""
        rows = [record["x_TD"] for record in self.walk.before(self.made.model.num_hidden_layers)]
        x_TD = torch.cat(processes.whole(rows))
        return rms_norm(x_TD, self.made.state.unrounded(NORM).float(), self.made.model.rms_norm_eps)


def _stacked(found: list[Choice | None]) -> Choice:
    """Returns factors [E, F] of experts, those of 1 for experts without a choice."""
    reached = [choice for choice in found if choice is not None]
    ones = torch.ones_like(reached[0].factors)
    factors_EF = torch.stack([ones if choice is None else choice.factors for choice in found])
    return Choice(factors_EF, factors_EF, sum(c.before for c in reached), sum(c.after for c in reached))


def layer_of(name: str) -> int | None:
    """Returns the number of the decoder layer that a tensor belongs to; None for all others."""
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return None if found is None else int(found[1])
