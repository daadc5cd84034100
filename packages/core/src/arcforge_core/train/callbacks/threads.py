"""Watches the cores that other programs take, and gives the run the number of threads that is fastest then."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
import torch
from rich.console import Console

from arcforge_core.train.module import TrainingModule
from arcforge_core.train.step import StepBatch
from arcforge_core.train.threads import CoreClock, ThreadControl

PERIOD = 3.0
"""Seconds of steps between two decisions; a step that takes longer is a period."""
LACKING = 0.25
"""A period is a busy one if other programs took more of a core than this from the run's threads."""


class Threads(L.Callback):
    """Sets torch's threads by `ThreadControl` and prints every change; sums up how busy the machine was.

    Args:
        console: prints the changes.
        most: threads on a quiet machine.
        adapt: whether to change the number; otherwise the machine is only watched.
    """

    def __init__(self, console: Console, most: int, adapt: bool) -> None:
        self.console, self.control, self.adapt = console, ThreadControl(most), adapt
        self.clock = CoreClock()
        self.cores = self.clock.cores
        self.busy = self.watched = self.taken = 0.0
        self.tokens, self.seconds = 0, 0.0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Starts the first period."""
        self.clock.free()

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        """Notes when the step began."""
        self._start = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: StepBatch, batch_idx: int
    ) -> None:
        """Adds the step; decides at the end of a period."""
        assert isinstance(module, TrainingModule)
        self.seconds += time.perf_counter() - self._start
        self.tokens += batch.num_tokens
        if self.seconds < PERIOD:
            return
        free = self.clock.free()
        if free is not None:
            self.watched += self.seconds
            self.taken += (self.clock.cores - free) * self.seconds
            self.busy += self.seconds if self.control.most - free > LACKING else 0.0
        if change := self._change(free):
            self.console.print(f"step {module.progress.step}: {change}")
        self.tokens, self.seconds = 0, 0.0

    def _change(self, free: float | None) -> str:
        """Sets the threads and returns a line about a change; a number that was asked for stays."""
        before, self.cores = self.cores, self.clock.cores
        if not self.adapt:
            less = self.cores < min(before, self.control.threads)
            return f"this process may use {self.cores:g} cores now, of {before:g}: slower" if less else ""
        change = self.control.allow(self.cores) if self.cores != before else ""
        change = change or self.control.add(self.tokens / self.seconds, self.seconds, free)
        torch.set_num_threads(self.control.threads)
        return change

    def figures(self) -> dict[str, float]:
        """Returns the share of busy time and the cores that other programs took on average; empty where unknown."""
        if not self.watched:
            return {}
        return {
            "busy_share": self.busy / self.watched,
            "cores_taken_by_others": self.taken / self.watched,
            "cores": self.clock.cores,
        }
