"""The inputs of a stage, recorded when it begins and compared when its pipeline is resumed.

A stamp (names, sizes and times) that has not changed is taken for unchanged contents; otherwise contents are compared.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.config.schema import TrainConfig
from arcforge_core.contracts.data import DocumentSource
from arcforge_core.data.sources.text import file_stamps
from arcforge_core.data.tokens.pipeline import build_data, with_tokenizer
from arcforge_core.errors import ArcforgeError, CheckpointError
from arcforge_core.files.checksums import file_sha256
from arcforge_core.pipeline.plan import STARTS, Stage
from arcforge_core.pipeline.recipe import filled
from arcforge_core.pipeline.state import Inputs, PipelineState
from arcforge_core.plugins.loader import registry

CORPUS_FILE = "corpus.json"
DATA = "data"


def record_inputs(config: Any) -> Inputs:
    """Returns stamps of a stage's texts and of the checkpoints that it starts from, the latter with hashes.

    Args:
        config: the stage, with folders in place of references.

    Raises:
        ArcforgeError: an input cannot be read.
    """
    found = {DATA: _data_stamp(config)} if isinstance(config, TrainConfig) else {}
    for name in sorted(STARTS):
        if isinstance(path := getattr(config, name, None), str):
            found[name] = {"stamp": _stamp(path), "sha256": _hash(path)}
    return found


def check_inputs(stages: Sequence[Stage], state: PipelineState, folder: Path) -> list[str]:
    """Compares the inputs of all stages that have begun with their records.

    A stage that has left nothing in the pipeline's folder, e.g. an evaluation, is planned again after a change.

    Returns:
        Those stages, and inputs that can no longer be compared, in words.

    Raises:
        CheckpointError: names every other stage whose inputs have changed.
    """
    places = {record.name: record.place(folder) for record in state.stages}
    told: list[str] = []
    refused: list[str] = []
    for stage, record in zip(stages, state.stages, strict=True):
        config, elsewhere = filled(stage.config, places), record.elsewhere
        for name, saved in record.inputs.items():
            try:
                changed = _changed(config, name, saved, folder / record.folder)
            except (ArcforgeError, OSError) as error:  # gone is not changed: a finished stage no longer needs it
                told.append(f"{record.name}: {name} can no longer be compared: {error}")
                continue
            if not changed:
                continue
            if elsewhere:
                record.status = "planned"
                told.append(f"{record.name} runs again: {changed} has other contents now")
            else:
                remedy = f"restore them, or remove {os.path.relpath(folder / record.folder)} to run it again"
                refused.append(f"{changed} has other contents than stage {record.name} began with ({remedy})")
    if refused:
        raise CheckpointError(f"cannot resume {os.path.relpath(folder)}: {'; '.join(refused)}")
    return told


def _changed(config: Any, name: str, saved: Mapping[str, str], run_dir: Path) -> str:
    """Returns the field and its value if its contents have changed; an empty text if not."""
    if name != DATA:
        path = getattr(config, name)
        return "" if _stamp(path) == saved["stamp"] or _hash(path) == saved["sha256"] else f"{name}={path}"
    if _data_stamp(config) == saved or not (run_dir / CORPUS_FILE).is_file():  # it had not read them yet
        return ""
    data = config.data if config.init is None else with_tokenizer(config.data, config.init)
    before = json.loads((run_dir / CORPUS_FILE).read_text(encoding="utf-8"))
    if _contents(before) == _contents(build_data(data, model_vocab_size=config.model.vocab_size).manifest):
        return ""
    paths = getattr(config.data, "paths", None)
    return f"data.paths={paths}" if paths else f"data={config.data.name}"


def _contents(manifest: Mapping[str, Any]) -> tuple[str, list[tuple[str, str, str]]]:
    """Returns hashes of the tokenizer and of all shards, training and held-out."""
    shards = [(shard["split"], shard["source"], shard["sha256"]) for shard in manifest["shards"]]
    return manifest["tokenizer"]["sha256"], shards


def _data_stamp(config: TrainConfig) -> dict[str, str]:
    source: DocumentSource = registry().get("data", config.data.name).load()(config.data)
    return {"stamp": source.fingerprint()}


def _stamp(checkpoint: str) -> str:
    return hashlib.sha256(repr(file_stamps(_files(checkpoint))).encode()).hexdigest()


def _hash(checkpoint: str) -> str:
    lines = (f"{path.name} {file_sha256(path)}\n" for path in _files(checkpoint))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _files(checkpoint: str) -> list[Path]:
    folder = find_checkpoint(checkpoint)
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
