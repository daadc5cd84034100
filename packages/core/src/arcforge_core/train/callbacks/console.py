"""Shows the progress of training: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import lightning as L
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from arcforge_core.train.callbacks.metrics import MetricsWriter
from arcforge_core.train.module import TrainingModule


class ConsoleProgress(L.Callback):
    """Prints selected columns of the metrics, held-out bits per byte and the remaining time.

    Args:
        console: output; only the first process prints.
        metrics: source of the rows.
        shown: format of each column; columns absent from a row are left out.
        pause: minimum seconds between lines; a bar moves with every step.
    """

    def __init__(self, console: Console, metrics: MetricsWriter, shown: Mapping[str, str], pause: float = 10.0) -> None:
        self.console, self.metrics, self.shown, self.pause = console, metrics, shown, pause
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
        """Moves the bar, or prints a line every `pause` seconds."""
        assert isinstance(module, TrainingModule)
        if not trainer.is_global_zero or not self.metrics.last_row:
            return
        status = self.status(module)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=module.fraction(), status=status)
        elif module.progress.step == 1 or time.monotonic() - self._last_line >= self.pause:
            self._last_line = time.monotonic()
            self.console.print(f"{module.fraction():4.0%}  {status}")

    def status(self, module: TrainingModule) -> str:
        """Returns a line with the figures of the last row."""
        row, fraction, seconds = self.metrics.last_row, module.fraction(), module.progress.seconds
        words = [f"step {module.progress.step}"]
        words += [form.format(row[name]) for name, form in self.shown.items() if name in row]
        if module.heldout is not None:
            words.append(f"held-out {module.heldout.bits_per_byte:.3f} bits/byte")
        if fraction > 0:
            words.append(f"{seconds * (1 - fraction) / fraction / 60:.1f} min left")
        return "  ".join(words)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        """Closes the bar, so that the error is printed below it."""
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
