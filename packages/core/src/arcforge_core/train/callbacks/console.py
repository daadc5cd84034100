"""Shows how training goes: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from arcforge_core.train.callbacks.evaluation import Evaluation
from arcforge_core.train.callbacks.metrics import MetricsWriter
from arcforge_core.train.module import LanguageModelModule

SECONDS_BETWEEN_LINES = 10.0


class ConsoleProgress(L.Callback):
    """Prints loss, held-out bits per byte, speed and the time left.

    Args:
        console: where to print.
        metrics, evaluation: where the figures come from.
    """

    def __init__(self, console: Console, metrics: MetricsWriter, evaluation: Evaluation) -> None:
        self.console, self.metrics, self.evaluation = console, metrics, evaluation
        self.bar: Progress | None = None
        self._last_line = 0.0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Opens the bar on a terminal."""
        if trainer.is_global_zero and self.console.is_terminal:
            columns = (TextColumn("training"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
            self.bar = Progress(*columns, TextColumn("{task.fields[status]}"), console=self.console)
            self.bar.add_task("training", total=1.0, status="")
            self.bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Moves the bar, or prints a line now and then."""
        assert isinstance(module, LanguageModelModule)
        if not trainer.is_global_zero or not self.metrics.last_row:
            return
        status = self.status(module)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=module.fraction(), status=status)
        elif module.progress.step == 1 or time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.console.print(f"{module.fraction():4.0%}  {status}")

    def status(self, module: LanguageModelModule) -> str:
        """Returns the figures of the last row in one line."""
        row, fraction, seconds = self.metrics.last_row, module.fraction(), module.progress.seconds
        left = f"{seconds * (1 - fraction) / fraction / 60:.1f} min left" if fraction > 0 else ""
        heldout = self.evaluation.last
        bits = f"  held-out {heldout.bits_per_byte:.3f} bits/byte" if heldout else ""
        return (
            f"step {module.progress.step}  loss {row['loss']:.3f}{bits}  "
            f"{row['tokens_per_s']:,.0f} tokens/s  MFU {row['mfu']:.0%}  {left}"
        )

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Closes the bar."""
        self._close()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        """Closes the bar, so that the error stands below it."""
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
