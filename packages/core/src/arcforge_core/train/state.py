"""The state of a training run on disk: a model directory plus optimizer, progress and random states.

``checkpoints/step-00000200/`` is a whole checkpoint or does not exist: it is written aside and renamed.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arcforge_core.checkpoint.atomic import replacing
from arcforge_core.checkpoint.pretrained import CONFIG, load_weights, write_pretrained
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.errors import CheckpointError
from arcforge_core.train.module import LanguageModelModule, Progress

STATE_FILE = "training_state.pt"


@dataclass
class TrainingState:
    """A checkpoint that was read.

    Attributes:
        path: its folder.
        step: optimizer steps taken.
        progress: fields of `Progress`.
        optimizer: the optimizer's state dict.
        torch_rng, python_rng: random states.
    """

    path: Path
    step: int
    progress: dict[str, Any]
    optimizer: dict[str, Any]
    torch_rng: torch.Tensor
    python_rng: tuple[Any, ...]

    def restore_into(self, module: LanguageModelModule) -> None:
        """Loads weights and progress; the optimizer's state waits until Lightning builds the optimizer."""
        load_weights(module.model, self.path)
        module.progress = Progress(**self.progress)
        module.optimizer_state = self.optimizer

    def restore_rng(self) -> None:
        """Sets the random states."""
        torch.set_rng_state(self.torch_rng)
        version, words, gauss = self.python_rng
        random.setstate((version, tuple(words), gauss))


def checkpoints(run_dir: Path) -> list[Path]:
    """Returns the checkpoints of a run, oldest first."""
    return sorted((run_dir / "checkpoints").glob("step-*"))


def save_training_state(run_dir: Path, module: LanguageModelModule, tokenizer: Tokenizer) -> Path:
    """Saves a checkpoint atomically, then removes all but the last ``keep_checkpoints``.

    Raises:
        CheckpointError: the disk is full or not writable; older checkpoints are untouched.
    """
    path = run_dir / "checkpoints" / f"step-{module.progress.step:08d}"
    optimizer = module.optimizers(use_pl_optimizer=False)
    assert isinstance(optimizer, torch.optim.Optimizer)
    progress = {f.name: getattr(module.progress, f.name) for f in dataclasses.fields(Progress) if f.name[0] != "_"}
    state = {
        "progress": progress,
        "optimizer": optimizer.state_dict(),
        "torch_rng": torch.get_rng_state(),
        "python_rng": random.getstate(),
    }
    with replacing(path, marker=CONFIG) as folder:
        write_pretrained(module.model, folder, tokenizer)
        try:
            torch.save(state, folder / STATE_FILE)
        except RuntimeError as error:  # how torch reports a full disk
            raise OSError(str(error)) from error
    for old in checkpoints(run_dir)[: -module.config.trainer.keep_checkpoints]:
        shutil.rmtree(old)
    return path


def load_training_state(run_dir: Path) -> TrainingState:
    """Reads the last checkpoint of a run.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    found = checkpoints(run_dir)
    if not found:
        raise CheckpointError(f"no checkpoint in {run_dir / 'checkpoints'}: the run has nothing to resume from")
    path = found[-1]
    try:
        state = torch.load(path / STATE_FILE, weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(f"{path / STATE_FILE} cannot be read: {error}") from error
    progress = state["progress"]
    return TrainingState(path, progress["step"], progress, state["optimizer"], state["torch_rng"], state["python_rng"])
