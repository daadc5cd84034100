"""The checkpoints of a run on disk, ``checkpoints/step-00000200/``, written atomically.

A checkpoint is a model in Hugging Face format with ``progress.json`` (steps, data position, time, held-out bits per
byte), ``training_state.pt`` (optimizer and random states) and ``SHA256SUMS``. The links ``latest`` and ``best`` are a
convenience for users; the code reads the folders themselves.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from arcforge_core.checkpoint.adapter import write_adapter
from arcforge_core.checkpoint.pretrained import write_pretrained
from arcforge_core.checkpoint.shards import save_tensors
from arcforge_core.checkpoint.starters import write_starters
from arcforge_core.errors import CheckpointError
from arcforge_core.eval.bits_per_byte import BitsPerByte
from arcforge_core.files.atomic import replacing
from arcforge_core.files.checksums import check_checksums, write_checksums
from arcforge_core.files.rundir import point_to
from arcforge_core.model.adapt.lora import adapter_of
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.snapshot import TrainingState

STATE_FILE, PROGRESS_FILE = "training_state.pt", "progress.json"


def checkpoints(run_dir: Path) -> list[Path]:
    """Returns the checkpoints of a run, oldest first."""
    return sorted((run_dir / "checkpoints").glob("step-*"))


def write_checkpoint(
    state: TrainingState, model: CausalLM, tokenizer: Tokenizer, keep_last: int, keep_best: bool
) -> None:
    """Writes a checkpoint to ``state.path``, then removes surplus checkpoints next to it.

    Args:
        state, model, tokenizer: contents of the checkpoint.
        keep_last: number of checkpoints to keep, including this one.
        keep_best: whether to keep the best one on held-out text, too.

    Raises:
        CheckpointError: the disk is full or not writable; older checkpoints are untouched.
    """
    with replacing(state.path, marker=None) as folder:
        (write_pretrained if adapter_of(model) is None else write_adapter)(model, folder, tokenizer)
        content = {"optimizer": state.optimizer, "options": state.options, "rng": state.rng, "extra": state.extra}
        _save(content, folder / STATE_FILE)
        write_starters(folder, state.page)
        for name, tensors in state.files.items():
            save_tensors(tensors, folder / name)
        heldout = asdict(state.heldout) if state.heldout else None
        progress = {"progress": state.progress, "world_size": state.world_size, "heldout": heldout}
        (folder / PROGRESS_FILE).write_text(json.dumps(progress, indent=1))
        write_checksums(folder)
    try:
        _tidy(state.path, keep_last, keep_best)
    except OSError as error:
        raise CheckpointError(f"{state.path} is saved, but tidying up beside it failed: {error}") from error


def _save(content: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # torch's own message says neither that the disk is full nor that Ctrl-C was pressed
            if isinstance(error.__context__, OSError | KeyboardInterrupt):
                raise error.__context__ from None
            raise


def _tidy(written: Path, keep_last: int, keep_best: bool) -> None:
    """Sets the links and removes checkpoints made superfluous by the new one, which is on disk.

    Later steps are damaged, or the run was resumed from before them.
    """
    everything = sorted(written.parent.glob("step-*"))
    past = [path for path in everything if path.name <= written.name]
    kept = past[-keep_last:]
    point_to(written.parent / "latest", written)
    best = best_checkpoint(past) if keep_best else None
    if best is not None:
        kept.append(best)
        point_to(written.parent / "best", best)
    for path in set(everything) - set(kept):
        path.rename(path.with_name(f".{path.name}.removed"))  # a kill must not leave half of it under its name
    for leftover in written.parent.glob(".*"):  # these, and leftovers of a killed save
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def best_checkpoint(paths: list[Path]) -> Path | None:
    """Returns the checkpoint with the fewest held-out bits per byte, of those evaluated on the last one's text."""
    evaluated = [(heldout, path) for path in paths if (heldout := read_heldout(path)) is not None]
    rivals = [(heldout.bits_per_byte, path) for heldout, path in evaluated if comparable(heldout, evaluated[-1][0])]
    return min(rivals)[1] if rivals else None


def comparable(a: BitsPerByte, b: BitsPerByte) -> bool:
    """Returns whether two evaluations used the same text; ``trainer.eval_tokens`` may have changed in between."""
    return a.num_bytes == b.num_bytes


def read_heldout(path: Path) -> BitsPerByte | None:
    """Returns the evaluation of a checkpoint, or None if it is missing or unreadable."""
    try:
        heldout = json.loads((path / PROGRESS_FILE).read_text())["heldout"]
        return BitsPerByte(**heldout) if heldout else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # damaged, hence no candidate


def read_checkpoint(path: Path) -> TrainingState:
    """Reads a checkpoint; its weights stay on disk.

    Raises:
        CheckpointError: a file is missing or damaged; it is named.
    """
    check_checksums(path)
    try:
        progress: dict[str, Any] = json.loads((path / PROGRESS_FILE).read_text())
        state = torch.load(path / STATE_FILE, weights_only=True, map_location="cpu")
        heldout = BitsPerByte(**progress["heldout"]) if progress["heldout"] else None
        return TrainingState(path, progress["progress"], progress["world_size"], heldout, **state)
    except Exception as error:  # torch.load may raise any error on damaged bytes
        raise CheckpointError(f"{path} was written by another version and cannot be read: {error}") from error


def last_checkpoint(run_dir: Path, say: Callable[[str], None] | None) -> TrainingState:
    """Reads the last checkpoint of a run.

    Args:
        run_dir: the run.
        say: receives a message for every damaged checkpoint, and the one before it is read instead; None reads only
            the last one.

    Raises:
        CheckpointError: there is no undamaged checkpoint.
    """
    found = checkpoints(run_dir)
    if not found:
        raise CheckpointError(f"no checkpoint in {run_dir / 'checkpoints'}: the run has nothing to resume from")
    while True:
        path = found.pop()
        try:
            return read_checkpoint(path)
        except CheckpointError as damage:
            if not found:
                raise
            if say is None:
                raise CheckpointError(f"{damage}; resume={found[-1]} takes the checkpoint before it") from damage
            say(f"{damage}; going back to {found[-1].name}")
