"""Ends a run: at its budget, or when the user asks with Ctrl-C."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import lightning as L

from arcforge_core.train.module import TrainingModule

T = TypeVar("T")


class Stopping(L.Callback):
    """Stops at the end of the step in which the budget runs out or a signal arrives.

    The first Ctrl-C (or SIGTERM) requests a stop, so that a checkpoint can be saved; a second one interrupts the step.
    Work `between_steps` is cut off by the first one.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._previous: dict[int, Any] = {}
        self._cuts = False

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        """Answers Ctrl-C during what precedes the first step, as samples and evaluations; there is nothing to save."""
        try:
            self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._end)
        except ValueError:
            self._previous.clear()

    def _end(self, number: int, frame: FrameType | None) -> None:
        os.write(2, b"stopping before the first step\n")
        raise KeyboardInterrupt

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Installs the signal handlers; restarts the clock, so that start-up does not use up the budget."""
        assert isinstance(module, TrainingModule)
        module.progress.restart_clock()
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous.setdefault(number, signal.getsignal(number))
                signal.signal(number, self._ask)
        except ValueError:
            # Only the main thread may handle signals; elsewhere the caller stops the run.
            self._previous.clear()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        signal.signal(number, self._previous[number])
        if self._cuts:
            os.write(2, b"stopping\n")
            raise KeyboardInterrupt
        os.write(2, b"stopping after this step; Ctrl-C again interrupts it\n")

    def between_steps(self, trainer: L.Trainer, module: TrainingModule, work: Callable[[], T]) -> T | None:
        """Returns the result of work that no checkpoint needs, or None because a stop is requested.

        The request cuts the work off, and later work does not begin. Several processes finish work that has begun:
        they exchange its results, and one that left would keep the others waiting.
        """
        if module.in_any_process(self.interrupted):
            self.interrupted = True
            return None
        try:
            self._cuts = trainer.world_size == 1
            try:
                return work()
            finally:
                self._cuts = False
        except KeyboardInterrupt:
            if not self.interrupted:
                raise
            return None

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, TrainingModule)
        self.interrupted = module.in_any_process(self.interrupted)
        if self.interrupted or module.fraction() >= 1.0:
            trainer.should_stop = True

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        """Restores the previous signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()


def stopping_of(trainer: L.Trainer) -> Stopping:
    """Returns the callback that stops this run."""
    return next(each for each in trainer.callbacks if isinstance(each, Stopping))  # type: ignore[attr-defined]
