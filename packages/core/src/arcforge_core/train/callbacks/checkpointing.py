"""Saves the run every N steps, when held-out loss improves and at the end; restores optimizer and random states."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from arcforge_core.eval.bits_per_byte import BitsPerByte
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.module import TrainingModule
from arcforge_core.train.snapshot import (
    Options,
    TrainingState,
    host_copy,
    optimizer_of,
    optimizer_options,
    take_state,
)
from arcforge_core.train.state import best_checkpoint, checkpoints, comparable, read_heldout, write_checkpoint


class Checkpointing(L.Callback):
    """Saves checkpoints at optimizer-step boundaries only: a Lightning batch is a step.

    With ``trainer.checkpoint_async`` the state is copied to host memory, and a thread writes the copy while training
    continues: a later save waits for it, and its errors are raised at the next step.

    Args:
        run_dir: the run.
        tokenizer: saved beside the model.
        restored: the state that a resumed run starts from.
        keep_best: whether to save whenever ``module.heldout`` improves, and to keep the best checkpoint. Callbacks
            that evaluate must come before this one.
        usable: called once, when the first checkpoint of weights that were trained is on disk; the thread that wrote it
            calls it.
    """

    def __init__(
        self,
        run_dir: Path,
        tokenizer: Tokenizer,
        restored: TrainingState | None,
        *,
        keep_best: bool,
        usable: Callable[[], None],
    ) -> None:
        self.run_dir, self.tokenizer, self.restored = run_dir, tokenizer, restored
        self.keep_best, self._usable = keep_best, usable
        self._pointed = False
        self.saved_step = restored.step if restored else -1
        self._options: Options = []
        self._heldout: BitsPerByte | None = None
        self._best: BitsPerByte | None = None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Restores optimizer and random states: the start of a fit builds the one and uses the other."""
        assert isinstance(module, TrainingModule)
        self._options = optimizer_options(optimizer_of(module))
        if self.restored is not None:
            past = [path for path in checkpoints(self.run_dir) if path.name <= self.restored.path.name]
            best = best_checkpoint(past)
            self._best = read_heldout(best) if best else None
            self.restored.restore_training(module)
            self.restored = None

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves every N steps, and when an evaluation after this step was the best so far."""
        assert isinstance(module, TrainingModule)
        if self._writing is not None and self._writing.done():
            self._wait()
        heldout = module.heldout if module.heldout is not self._heldout else None
        self._heldout = module.heldout
        settings = module.settings.trainer
        improved = self.keep_best and heldout is not None and self._improves(heldout)
        if module.progress.step % settings.checkpoint_every == 0 or improved:
            self._save(trainer, module, heldout)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Saves the end of the run, or the point of interruption, and waits until it is on disk."""
        assert isinstance(module, TrainingModule)
        self._save(trainer, module, None)
        self._wait()
        self._writer.shutdown()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        """Waits for a save in progress."""
        self._wait()
        self._writer.shutdown()

    def _improves(self, heldout: BitsPerByte) -> bool:
        best = self._best
        if best is not None and comparable(best, heldout) and not heldout.bits_per_byte < best.bits_per_byte:
            return False
        self._best = heldout
        return True

    def _save(self, trainer: L.Trainer, module: TrainingModule, heldout: BitsPerByte | None) -> None:
        """Saves this step, unless it is saved already."""
        if not trainer.is_global_zero or self.saved_step == module.progress.step:
            return
        self._wait()
        settings, model = module.settings.trainer, module.model
        state = take_state(module, self.run_dir, self._options, heldout)
        keep = settings.keep_checkpoints, self.keep_best
        asynchronous = settings.checkpoint_async
        if asynchronous is None:
            asynchronous = module.device.type != "cpu"  # on the CPU, writing would compete with training for cores
        if asynchronous:
            moments = [t for of_one in state.optimizer["state"].values() for t in of_one.values()]
            further = [tensor for file in state.files.values() for tensor in file.values()]
            state = host_copy(state, [*further, *(t for t in moments if isinstance(t, Tensor))])
            model = host_copy(model, [*model.parameters(), *model.buffers()])
            self._writing = self._writer.submit(self._write, state, model, keep, module.progress.tokens)
        else:
            self._write(state, model, keep, module.progress.tokens)
        self.saved_step = module.progress.step

    def _write(self, state: TrainingState, model: CausalLM, keep: tuple[int, bool], tokens: int) -> None:
        write_checkpoint(state, model, self.tokenizer, *keep)
        if tokens and not self._pointed:
            self._usable()
            self._pointed = True

    def _wait(self) -> None:
        """Waits for the save in progress and raises its error."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
