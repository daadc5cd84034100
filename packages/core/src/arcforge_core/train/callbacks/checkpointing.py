"""Saves the run every N steps and at its end, keeps the last k, and restores random states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L

from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.train.module import LanguageModelModule
from arcforge_core.train.state import TrainingState, save_training_state


class Checkpointing(L.Callback):
    """Checkpoints at optimizer-step boundaries only: a Lightning batch is a step.

    Args:
        run_dir: the run.
        tokenizer: saved beside the model.
        restored: the state that a resumed run starts from.
    """

    def __init__(self, run_dir: Path, tokenizer: Tokenizer, restored: TrainingState | None) -> None:
        self.run_dir, self.tokenizer, self.restored = run_dir, tokenizer, restored
        self.saved_step = restored.step if restored else -1

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Restores random states, which the start of a fit consumes."""
        if self.restored is not None:
            self.restored.restore_rng()
            self.restored = None

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves when it is due."""
        assert isinstance(module, LanguageModelModule)
        if module.progress.step % module.config.trainer.checkpoint_every == 0:
            self.save(trainer, module)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Saves the end of the run, or the point of interruption."""
        assert isinstance(module, LanguageModelModule)
        self.save(trainer, module)

    def save(self, trainer: L.Trainer, module: LanguageModelModule) -> None:
        """Saves this step once."""
        if trainer.is_global_zero and self.saved_step != module.progress.step:
            save_training_state(self.run_dir, module, self.tokenizer)
            self.saved_step = module.progress.step
