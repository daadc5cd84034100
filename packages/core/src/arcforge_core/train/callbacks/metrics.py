"""Writes the rows of ``metrics.csv``, averages of scalars over steps, to the file and to the run's loggers."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import Logger
from torch import Tensor

from arcforge_core.console.progress import say
from arcforge_core.files.rundir import write_text
from arcforge_core.train.module import TrainingModule

METRICS_FILE = "metrics.csv"
NOT_AVERAGED = ("lr",)
"""Figures for which a row has the value of its last step."""


def append_row(path: Path, row: Mapping[str, Any], key: Sequence[str] = ()) -> None:
    append_rows(path, [row], key)


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]], key: Sequence[str] = ()) -> None:
    """Appends rows to a CSV file; adds missing columns to the file, and leaves columns absent from the rows empty.

    Args:
        path: the file; created with a header if it does not exist.
        rows: at least one; all have the columns of the first.
        key: rows in the file with the same values in these columns are removed: a run that is resumed at its last step
            evaluates that step again.
    """
    header = list(rows[0])
    if key:
        _drop_rows(path, key, {tuple(str(row[name]) for name in key) for row in rows})
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            header = next(csv.reader(file))
        new = [name for name in rows[0] if name not in header]
        if new:
            header += new
            _, *lines = path.read_text(encoding="utf-8").splitlines()
            write_text(path, "\n".join([",".join(header), *(line + "," * len(new) for line in lines)]) + "\n")
    else:
        path.write_text(",".join(header) + "\r\n", encoding="utf-8", newline="")
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, header).writerows(rows)


def _drop_rows(path: Path, key: Sequence[str], values: Collection[tuple[str, ...]]) -> None:
    """Removes the rows with these values in the columns of `key` from a file, if there are any."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [
        line
        for line, row in zip(lines[1:], csv.DictReader(lines), strict=True)
        if tuple(row.get(name) for name in key) not in values
    ]
    if len(kept) < len(lines) - 1:
        write_text(path, "".join([*lines[:1], *kept]))


def log_scalars(trainer: L.Trainer, scalars: Mapping[str, float], step: int) -> None:
    """Passes scalars to every logger of the run."""
    tell_loggers(trainer, lambda logger: logger.log_metrics(dict(scalars), step=step))


def tell_loggers(trainer: L.Trainer, tell: Callable[[Logger], object]) -> None:
    """Calls `tell` with every logger of the run. One that raises is named, and left out from then on."""
    for logger in list(trainer.loggers):
        try:
            tell(logger)
        except Exception as error:  # of any library and server; the run's own record is metrics.csv
            trainer.loggers = [other for other in trainer.loggers if other is not logger]
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            say(f"warning: {type(logger).__name__} fails and is left out from here on: {reason}")


class MetricsWriter(L.Callback):
    """Writes ``metrics.csv``: the figures of `StepRecord`, as means over the steps since the last row.

    Args:
        run_dir: folder of the file.
        every: steps between rows.

    Attributes:
        last_row: the last written row.
    """

    def __init__(self, run_dir: Path, every: int = 1) -> None:
        self.run_dir, self.every = run_dir, every
        self.last_row: dict[str, float] = {}
        self.sums: dict[str, Tensor | float] = {}
        self.steps = 0

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Adds the step; writes a row every `every` steps."""
        assert isinstance(module, TrainingModule) and module.record is not None
        self.steps += 1
        for name, value in module.record.figures.items():
            add = name in self.sums and name not in NOT_AVERAGED
            self.sums[name] = self.sums[name] + value if add else value
        if module.progress.step % self.every == 0 or module.progress.step == 1:
            self.write(trainer, module)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Writes a row for the steps since the last one."""
        assert isinstance(module, TrainingModule)
        if self.steps:
            self.write(trainer, module)

    def columns(self) -> dict[str, float]:
        """Returns additional columns for the next row."""
        return {}

    def write(self, trainer: L.Trainer, module: TrainingModule) -> None:
        """Writes a row and resets the sums."""
        progress = module.progress
        self.last_row = {
            "step": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 3),
            "progress": module.fraction(),
            **{name: self._mean(name, total) for name, total in self.sums.items()},
            **self.columns(),
        }
        if trainer.is_global_zero:
            append_row(self.run_dir / METRICS_FILE, self.last_row)
            log_scalars(trainer, {k: v for k, v in self.last_row.items() if k != "step"}, progress.step)
        self.sums, self.steps = {}, 0

    def _mean(self, name: str, total: Tensor | float) -> float:
        value = float(total) if isinstance(total, Tensor) else total
        return value if self.steps == 1 or name in NOT_AVERAGED else value / self.steps
