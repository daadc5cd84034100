"""Held-out evaluation in bits per byte during training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L

from arcforge_core.console.progress import working
from arcforge_core.data.tokens.pipeline import Corpus
from arcforge_core.eval.bits_per_byte import bits_per_byte
from arcforge_core.train.callbacks.metrics import append_row, log_scalars
from arcforge_core.train.module import LanguageModelModule


class Evaluation(L.Callback):
    """Writes ``eval.csv``: evaluates part of the held-out text every N steps, and all of it by `evaluate` at the end.

    Args:
        corpus: source of the held-out text.
        run_dir: folder of the file.
    """

    def __init__(self, corpus: Corpus, run_dir: Path) -> None:
        self.corpus, self.run_dir = corpus, run_dir

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Evaluates every N steps."""
        assert isinstance(module, LanguageModelModule)
        if module.progress.step % module.config.trainer.eval_every == 0 and module.fraction() < 1.0:
            self.evaluate(trainer, module, module.config.trainer.eval_tokens)

    def evaluate(self, trainer: L.Trainer, module: LanguageModelModule, max_tokens: int | None) -> None:
        """Evaluates on at most `max_tokens` held-out tokens (None: all), sets ``module.heldout`` and writes a row."""
        settings = module.config.trainer
        batches = self.corpus.heldout_batches(settings.sequence_length, settings.micro_batch_tokens, max_tokens)
        with working("evaluating on held-out text"):
            found = module.heldout = bits_per_byte(module.model, batches)
        progress = module.progress
        row = {
            "step": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 3),
            "loss": found.loss,
            "bits_per_byte": found.bits_per_byte,
            "num_bytes": found.num_bytes,
        }
        if trainer.is_global_zero:
            append_row(self.run_dir / "eval.csv", row, key=("step", "num_bytes"))
            scalars = {"heldout_loss": found.loss, "heldout_bits_per_byte": found.bits_per_byte}
            log_scalars(trainer, scalars, progress.step)
