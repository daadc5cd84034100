"""Implements ``arcforge-quantize``: one layer in memory, one file per layer and process, resumable.

Processes that torchrun started share the text, the searches and the matrices of each layer; all see the same folders.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcforge_core.checkpoint.hf.folder import OWN, default_architecture, find_architecture, write_tokenizer
from arcforge_core.checkpoint.hf.links import links
from arcforge_core.checkpoint.packed import QUANTISED
from arcforge_core.checkpoint.pretrained import find_checkpoint, open_checkpoint
from arcforge_core.checkpoint.sections import read_json
from arcforge_core.checkpoint.shards import INDEX, ShardReader, save_tensors
from arcforge_core.console.progress import say, track
from arcforge_core.console.result import Result
from arcforge_core.contracts.checkpoint import Link
from arcforge_core.errors import CheckpointError
from arcforge_core.files.find import CONFIG
from arcforge_core.files.rundir import write_json
from arcforge_core.ops.allocator import return_freed_memory
from arcforge_core.ops.quant import Quantised, dequantise
from arcforge_core.plugins.loader import registry
from arcforge_core.train import processes
from arcforge_core.version import __version__
from arcforge_hw.quantization.configs import QuantizeConfig
from arcforge_hw.quantization.layouts import LAYOUTS, FileLayout
from arcforge_hw.quantization.transform import PIECE

SETTINGS = "quantize.json"
"""Marks an unfinished directory, and what it is made of."""


def run(config: QuantizeConfig) -> Result:
    """`quantise`, and a table of the figures."""
    with processes.connected():
        result = quantise(config)
        if processes.first():
            result.show(f"{result.dir}: {config.quantizer.name}")
    return result


def quantise(config: QuantizeConfig) -> Result:
    """Quantises a checkpoint, compares the files with what was rounded and returns sizes and errors.

    Raises:
        CheckpointError: the source is missing, or quantised already; the target exists or cannot be written.
        ConfigError: the recipe does not fit the model, or the calibration text does not.
        DataError: the calibration text cannot be read.
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
    every = list(links(shapes, made.model.num_hidden_layers, architecture.rotated(written, made.model)))
    stages = _stages(every)
    layout, quantised = LAYOUTS[config.layout], [link for link in every if link.ours in made.formats]
    forms = {part: made.formats[link.ours] for link in quantised for part in link.theirs}
    parts = {part: _part_shape(shapes[link.ours], link) for link in quantised for part in link.theirs}
    layout.check(parts, forms)
    settings: dict[str, Any] = {
        "source": str(source), "quantizer": asdict(config.quantizer), "layout": config.layout,
    }  # fmt: skip
    if (count := processes.place()[1]) > 1:
        settings["processes"] = count
    work, calibration = target.with_name(f".{target.name}.unfinished"), None
    if hasattr(made, "calibration"):
        calibration = made.calibration(config.data, source, work)
        settings["data"] = asdict(config.data)
    try:
        figures = _write(work, settings, made, layout, stages, calibration)
        if not processes.first():
            return Result(target, processes.gather(figures)[0])
        if calibration is not None:
            calibration.finish()
        stored = opened.state[next(iter(opened.state.shapes))].dtype
        figures["original_bytes"] = float(sum(shapes[name].numel() for name in made.formats) * stored.itemsize)
        own = {"version": __version__, **architecture.own_section(made.model, opened.attention)}
        kept = [part for link in every if link.ours not in made.formats and len(shapes[link.ours]) > 1
            for part in link.theirs]  # fmt: skip
        packed = {**layout.finish(work, made.state, forms, kept, made.rounds), OWN: made.section}
        written |= {
            "dtype": str(stored).removeprefix("torch."),
            **write_tokenizer(source, work),
            OWN: own,
            QUANTISED: packed,
        }
        (work / CONFIG).write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        _verify(work, layout, packed, quantised)
        _clean(work, calibration)
        (work / SETTINGS).unlink()
        work.rename(target)
    except OSError as error:
        raise CheckpointError(f"cannot write {target}: {error.strerror or error}; {work} can be resumed") from error
    return Result(target, processes.gather(figures)[0])


def _stages(every: Sequence[Link]) -> list[list[Link]]:
    """Returns the tensors that are made together: the embedding, a layer each, the MTP module, norm and head."""
    stages: dict[str, list[Link]] = {}
    for link in every:
        found = re.match(r"model\.layers\.\d+|mtp|model\.embed_tokens", link.ours)
        stages.setdefault(found[0] if found else "", []).append(link)
    last = stages.pop("")
    return [*stages.values(), last]


def _write(
    work: Path, settings: dict[str, Any], made: Any, layout: FileLayout, stages: list[list[Link]], calibration: Any
) -> dict[str, float]:
    """Writes a file per stage and process, and the index; stages whose files exist are kept."""
    work.mkdir(parents=True, exist_ok=True)
    known, settings = work / SETTINGS, {**settings, "stages": [stage[0].ours for stage in stages]}
    if processes.first():
        if known.is_file() and json.loads(known.read_text(encoding="utf-8")) != settings:
            raise CheckpointError(f"{work} was made with other settings: remove it, or choose another output")
        write_json(known, settings)
    if calibration is not None:
        calibration.resume()
    weight_map: dict[str, str] = {}
    sums = {"bytes": 0.0, "quantised_bytes": 0.0, "error": 0.0}
    for number, stage in enumerate(track(stages, "quantising") if processes.first() else stages):
        paths = _files(work, number, len(stages))
        path = paths[processes.place()[0]]
        if not all(processes.gather(path.with_suffix(".json").is_file())):
            if calibration is not None:
                calibration.enter(stage[0].ours)
            _write_part(path, made, layout, processes.part(stage), (calibration or made).round)
            processes.gather(None)  # another process may have to begin this stage again
        if calibration is not None:
            calibration.leave(stage[0].ours)
        if not processes.first():
            continue
        worst = 0.0
        for path in paths:
            found = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            weight_map |= dict.fromkeys(found["names"], path.name)
            sums["bytes"] += path.stat().st_size if found["names"] else 0
            sums["quantised_bytes"] += found["stored"]
            worst = max(worst, found["error"])
        sums["error"] = max(sums["error"], worst)
        if worst:
            say(f"{stage[0].ours}: relative error of the worst weight {worst:.4f}")
    if not processes.first():
        return sums
    index = {"metadata": {"total_size": int(sums["bytes"])}, "weight_map": dict(sorted(weight_map.items()))}
    (work / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return sums


def _files(work: Path, stage: int, stages: int) -> list[Path]:
    """Returns a stage's file of each process."""
    count = processes.place()[1]
    numbers = range(stage * count + 1, (stage + 1) * count + 1)
    return [work / f"model-{number:05d}-of-{stages * count:05d}.safetensors" for number in numbers]


def _write_part(
    path: Path, made: Any, layout: FileLayout, stage: Sequence[Link], rounded: Callable[[str, Tensor], Quantised]
) -> None:
    """Writes this process's tensors of a stage, no file if there are none, and their notes."""
    tensors, figures, digests = _quantised(made, layout, stage, rounded)
    if tensors:
        partial = path.with_suffix(".partial")
        save_tensors(tensors, partial)
        partial.rename(path)
    write_json(path.with_suffix(".json"), {"names": list(tensors), **figures, "digests": digests})
    del tensors  # or they would be in memory beside the next layer
    return_freed_memory()


def _quantised(
    made: Any, layout: FileLayout, stage: Sequence[Link], rounded: Callable[[str, Tensor], Quantised]
) -> tuple[dict[str, Tensor], dict[str, float], dict[str, str]]:
    """Returns a stage's stored tensors, the largest relative error of a weight with the bytes of integers, digests."""
    tensors, digests = dict[str, Tensor](), dict[str, str]()
    figures = {"stored": 0.0, "error": 0.0}
    unrounded = getattr(made.state, "unrounded", made.state.__getitem__)
    for link in stage:
        return_freed_memory()
        if link.ours not in made.formats:
            parts = zip(link.theirs, link.split(made.state[link.ours]), strict=True)
            tensors |= {name: _alone(part) for name, part in parts}
            continue
        tensor = unrounded(link.ours)
        integers = rounded(link.ours, tensor)
        figures["error"] = max(figures["error"], _lost(integers, tensor))
        del tensor
        return_freed_memory()
        for name, part in _parts(link, integers):
            digests[name] = _digest(part)
            stored = layout.encode(name, part)
            figures["stored"] += sum(x.nbytes for x in stored.values())
            tensors |= {key: _alone(x) for key, x in stored.items()}
        del integers, part, stored  # or they would be in memory beside the next tensor
    return tensors, figures, digests


def _lost(integers: Quantised, weight: Tensor) -> float:
    """Returns the norm of what rounding changed, relative to the weight's, computed in pieces of `PIECE` values."""
    lost = whole = 0.0
    rows = max(1, PIECE // weight.shape[-1])
    for piece, *stored in zip(*(x.flatten(0, -2).split(rows) for x in (weight, *integers)), strict=True):
        wide = piece.float()
        lost += float((dequantise(Quantised(*stored)) - wide).norm()) ** 2
        whole += float(wide.norm()) ** 2
    return math.sqrt(lost / max(whole, 1e-60))


def _alone(x: Tensor) -> Tensor:
    """Returns a contiguous tensor that shares its memory with no other, as files need."""
    whole = x.is_contiguous() and x.untyped_storage().nbytes() == x.nbytes
    return x if whole else x.clone(memory_format=torch.contiguous_format)


def _digest(integers: Quantised) -> str:
    """Returns a hash of integers and their scales as they are stored, in float32."""
    found = hashlib.sha256()
    for part in (integers.values, integers.scale.float()):
        found.update(repr((part.dtype, part.shape)).encode())
        found.update(part.contiguous().view(torch.uint8).flatten().numpy().data)
    return found.hexdigest()


def _parts(link: Link, integers: Quantised) -> list[tuple[str, Quantised]]:
    values, scales = link.split(integers.values), link.split(integers.scale)
    return [(name, Quantised(*pair)) for name, *pair in zip(link.theirs, values, scales, strict=True)]


def _part_shape(shape: torch.Size, link: Link) -> torch.Size:
    """Returns the shape [N, K] of the stored matrices of a weight, all of one shape, read without its values."""
    return link.split(torch.empty(shape, device="meta"))[0].shape


def _verify(work: Path, layout: FileLayout, packed: dict[str, Any], quantised: list[Link]) -> None:
    """Unpacks every file, packs it again, and compares the integers with those that were rounded."""
    stored = ShardReader(work)
    shards = layout.shards(stored, packed, str(work))
    wanted: dict[str, str] = {}
    for notes in _notes(work):
        wanted |= json.loads(notes.read_text(encoding="utf-8"))["digests"]
    for link in track(quantised, "verifying"):
        return_freed_memory()
        for name in link.theirs:
            if _digest(layout.verify(shards, stored, name)) != wanted[name]:
                raise CheckpointError(f"{name} differs after writing: the disk or its file system is at fault")


def _clean(work: Path, calibration: Any) -> None:
    """Removes what only a killed command needs, so that one killed here starts at worst again."""
    for notes in _notes(work):
        notes.unlink()
    if calibration is not None:
        calibration.clean()


def _notes(work: Path) -> list[Path]:
    return [notes for notes in work.glob("model-*.json") if notes.name != INDEX]
