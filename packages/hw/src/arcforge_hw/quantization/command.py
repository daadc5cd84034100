"""Implements ``arcforge-quantize``: one layer in memory, one file per layer, resumable."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import arcforge_core
from arcforge_core.checkpoint.hf.folder import OWN, default_architecture, find_architecture, write_tokenizer
from arcforge_core.checkpoint.hf.links import links
from arcforge_core.checkpoint.packed import QUANTISED, PackedShards, describe, encode
from arcforge_core.checkpoint.pretrained import find_checkpoint, open_checkpoint
from arcforge_core.checkpoint.sections import read_json
from arcforge_core.checkpoint.shards import INDEX, ShardReader, save_tensors
from arcforge_core.console.progress import say, track
from arcforge_core.console.result import Result
from arcforge_core.contracts.checkpoint import Link
from arcforge_core.errors import CheckpointError
from arcforge_core.files.find import CONFIG
from arcforge_core.files.rundir import write_json
from arcforge_core.ops.quant import Quantised, dequantise
from arcforge_core.plugins.loader import registry
from arcforge_hw.quantization.configs import QuantizeConfig

SETTINGS = "quantize.json"
"""Marks an unfinished directory, and what it is made of."""


def run(config: QuantizeConfig) -> Result:
    """Quantises a checkpoint, compares the files with what was rounded and returns sizes and errors.

    Raises:
        CheckpointError: the source is missing, or quantised already; the target exists or cannot be written.
        ConfigError: the recipe does not fit the model.
    """
    source, target = find_checkpoint(str(config.checkpoint)), Path(str(config.output)).resolve()
    if QUANTISED in read_json(source):
        raise CheckpointError(f"{source} is quantised already: quantise the original checkpoint")
    if target.exists():
        raise CheckpointError(f"{target} exists; choose another directory")
    opened = open_checkpoint(source)
    made = registry().get("quantizer", config.quantizer.name).load().build(config.quantizer, opened)
    architecture = find_architecture(default_architecture(made.model, opened.attention), "architecture")
    written = architecture.write(made.model, opened.attention)
    shapes = made.state.shapes
    every = links(shapes, made.model.num_hidden_layers, architecture.rotated(written, made.model))
    stages = _stages(list(every))
    settings = {"source": str(source), "quantizer": asdict(config.quantizer)}
    work = target.with_name(f".{target.name}.unfinished")
    try:
        figures = _write(work, settings, made, stages)
        own = {"version": arcforge_core.__version__, **architecture.own_section(made.model, opened.attention)}
        dtype = str(opened.state[next(iter(opened.state.shapes))].dtype).removeprefix("torch.")
        forms = {part: made.formats[link.ours] for stage in stages for link in stage if link.ours in made.formats
            for part in link.theirs}  # fmt: skip
        kept = [part for stage in stages for link in stage if link.ours not in made.formats and
            len(shapes[link.ours]) > 1 for part in link.theirs]  # fmt: skip
        packed = {**describe(forms, made.rounds, kept), OWN: made.section}
        written |= {"dtype": dtype, **write_tokenizer(source, work), OWN: own, QUANTISED: packed}
        (work / CONFIG).write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        _verify(work, packed, made, stages)
        (work / SETTINGS).unlink()
        work.rename(target)
    except OSError as error:
        raise CheckpointError(f"cannot write {target}: {error.strerror or error}; {work} can be resumed") from error
    result = Result(target, figures)
    result.show(f"{target}: {config.quantizer.name}")
    return result


def _stages(every: Sequence[Link]) -> list[list[Link]]:
    """Returns the tensors that are made together: a layer each, everything else first."""
    stages: dict[str, list[Link]] = {}
    for link in every:
        found = re.match(r"model\.layers\.\d+|mtp", link.ours)
        stages.setdefault(found[0] if found else "", []).append(link)
    return list(stages.values())


def _write(work: Path, settings: dict[str, Any], made: Any, stages: list[list[Link]]) -> dict[str, float]:
    """Writes a file per stage and the index; stages whose file exists are kept."""
    work.mkdir(parents=True, exist_ok=True)
    known = work / SETTINGS
    if known.is_file() and json.loads(known.read_text(encoding="utf-8")) != settings:
        raise CheckpointError(f"{work} was made with other settings: remove it, or choose another output")
    write_json(known, settings)
    weight_map: dict[str, str] = {}
    sums = {"bytes": 0.0, "quantised_bytes": 0.0, "original_bytes": 0.0, "error": 0.0}
    for number, stage in enumerate(track(stages, "quantising")):
        path = work / f"model-{number + 1:05d}-of-{len(stages):05d}.safetensors"
        notes = path.with_suffix(".json")
        if not notes.is_file():
            tensors, figures = _quantised(made, stage)
            partial = path.with_suffix(".partial")
            save_tensors(tensors, partial)
            partial.rename(path)
            write_json(notes, {"names": list(tensors), **figures})
        found = json.loads(notes.read_text(encoding="utf-8"))
        weight_map |= dict.fromkeys(found["names"], path.name)
        sums["bytes"] += path.stat().st_size
        sums["quantised_bytes"] += found["stored"]
        sums["original_bytes"] += found["original"]
        sums["error"] = max(sums["error"], found["error"])
        if found["error"]:
            say(f"{stage[0].ours}: relative error of the worst weight {found['error']:.4f}")
    index = {"metadata": {"total_size": int(sums["bytes"])}, "weight_map": dict(sorted(weight_map.items()))}
    (work / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return sums


def _quantised(made: Any, stage: list[Link]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Returns a stage's stored tensors, and the largest relative error of a weight with the bytes of the integers."""
    tensors: dict[str, Tensor] = {}
    figures = {"stored": 0.0, "original": 0.0, "error": 0.0}
    for link in stage:
        tensor = made.state[link.ours]
        if link.ours not in made.formats:
            parts = zip(link.theirs, link.split(tensor), strict=True)
            tensors |= {name: part.clone(memory_format=torch.contiguous_format) for name, part in parts}
            continue
        integers = made.round(link.ours, tensor)
        lost = (dequantise(integers) - tensor.float()).norm() / tensor.float().norm().clamp(min=1e-30)
        figures["error"] = max(figures["error"], float(lost))
        figures["original"] += tensor.nbytes
        for name, part in _parts(link, integers):
            stored = encode(name, part)
            figures["stored"] += sum(x.nbytes for x in stored.values())
            tensors |= {key: x.clone(memory_format=torch.contiguous_format) for key, x in stored.items()}
    return tensors, figures


def _parts(link: Link, integers: Quantised) -> list[tuple[str, Quantised]]:
    values, scales = link.split(integers.values), link.split(integers.scale)
    return [(name, Quantised(*pair)) for name, *pair in zip(link.theirs, values, scales, strict=True)]


def _verify(work: Path, packed: dict[str, Any], made: Any, stages: list[list[Link]]) -> None:
    """Unpacks every file and compares it with the rounded weights, layer by layer."""
    shards = PackedShards(ShardReader(work), packed, str(work))
    for link in track([link for stage in stages for link in stage if link.ours in made.formats], "verifying"):
        for name, wanted in _parts(link, made.round(link.ours, made.state[link.ours])):
            found = shards.quantised(name)[0]
            if not all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True)):
                raise CheckpointError(f"{name} differs after writing: the disk or its file system is at fault")
    for notes in work.glob("model-*.json"):
        if notes.name != INDEX:
            notes.unlink()
