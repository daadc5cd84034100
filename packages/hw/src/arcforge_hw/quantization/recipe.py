"""Which matrices get which format: a preset, and globs that keep more of them as floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch

from arcforge_core.errors import ConfigError, listed
from arcforge_core.model.adapt.quantised import MODES, PROJECTIONS
from arcforge_core.ops.quant import Format


def chosen_formats(shapes: Mapping[str, torch.Size], weights: str, keep: Sequence[str]) -> dict[str, Format]:
    """Returns the formats by name of the weights that are quantised, under arcforge's names.

    Args:
        shapes: of the model's state dict.
        weights: a name in `MODES`, the preset.
        keep: globs of further weights that stay floats, e.g. ``model.layers.0.*``.

    Raises:
        ConfigError: a glob matches no weight of the preset, every weight is kept, or a row does not fit its format.
    """
    mode, found = MODES[weights], dict[str, Format]()
    for name in shapes:
        part = name.removesuffix(".weight").rpartition(".")[2]
        if name.startswith("mtp."):
            continue
        if ".mlp.experts." in name:
            found[name] = mode.experts
        elif name == "lm_head.weight" and mode.head is not None:
            found[name] = mode.head
        elif name.endswith(".weight") and part in PROJECTIONS:
            found[name] = mode.linear
    kept: set[str] = set()
    for pattern in keep:
        matched = {name for name in found if fnmatchcase(name, pattern)}
        if not matched:
            raise ConfigError("quantizer.keep", pattern, f"matches none of the weights that {weights} quantises")
        kept |= matched
    halves = {name for name in kept if ".mlp.experts." in name}
    for name in halves:
        pair = name.rpartition(".")[0]
        if not {f"{pair}.gate_up_proj", f"{pair}.down_proj"} <= kept:
            raise ConfigError("quantizer.keep", listed(keep), f"must keep both or no weights of {pair}")
    formats = {name: form for name, form in found.items() if name not in kept}
    if not formats:
        raise ConfigError("quantizer.keep", listed(keep), "keeps every weight")
    for name, form in formats.items():
        try:
            form.check(shapes[name][-1])
        except ValueError as error:
            raise ConfigError("quantizer.weights", weights, f"{name}: {error}") from error
    return formats
