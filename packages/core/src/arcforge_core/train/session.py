"""One training run from configuration to report: `Session` is common to all kinds of run, `Hooks` specific to one.

Pre-training, supervised fine-tuning and reinforcement learning are each one class with four methods.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import lightning as L
import torch
from rich.console import Console

from arcforge_core.config.ready import check_folders
from arcforge_core.config.schema import RunConfig
from arcforge_core.console.result import Result
from arcforge_core.errors import DISK_FULL, ArcforgeError
from arcforge_core.files.lock import locked
from arcforge_core.files.rundir import (
    check_writable,
    create_run_dir,
    drop_rows_after,
    point_latest,
    point_name,
    read_latest,
    write_run_start,
)
from arcforge_core.garbage import frozen_garbage
from arcforge_core.ops.processor import allowed_cores
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.callbacks.checkpointing import Checkpointing
from arcforge_core.train.callbacks.metrics import tell_loggers
from arcforge_core.train.callbacks.stopping import Stopping
from arcforge_core.train.module import TrainingModule
from arcforge_core.train.prepare import prepare_hardware, use_threads
from arcforge_core.train.resume import (
    check_same_run,
    find_run,
    find_state,
    restarts,
    resume_command,
    run_of_this_launch,
)
from arcforge_core.train.snapshot import TrainingState
from arcforge_core.train.state import checkpoints
from arcforge_core.train.step import NonFiniteError
from arcforge_core.train.trainer import build_trainer, check_components, connect_restarted


@dataclass
class Parts:
    """The module, tokenizer and data of a run.

    Attributes:
        module: has the initial weights of a new run.
        tokenizer: saved with every checkpoint.
        batches: arguments of `training_step`, one for each optimizer step.
        keep_best: whether to save whenever ``module.heldout`` improves, and to keep the best checkpoint.
    """

    module: TrainingModule
    tokenizer: Tokenizer
    batches: Iterable[Any]
    keep_best: bool = False


class Hooks(Protocol):
    """The parts of a session that depend on the kind of run; each method is called once, in this order.

    Attributes:
        fixed: prefixes of the fields that a resumed run must not change.
        free: exceptions to `fixed`.
        tables: CSV files in the run folder whose first column is the step; a resumed run drops later rows.
    """

    fixed: tuple[str, ...]
    free: tuple[str, ...] = ()
    tables: tuple[str, ...]

    def build(self, session: Session) -> Parts:
        """Builds data and model before the folder of a new run exists, so that an error leaves no folder."""
        ...

    def callbacks(self, session: Session) -> list[L.Callback]:
        """Returns the callbacks; the module has the initial weights and progress of the fit."""
        ...

    def finish(self, session: Session) -> None:
        """Evaluates a run that was not interrupted; called in every process."""
        ...

    def report(self, session: Session, status: str) -> dict[str, float | str]:
        """Writes summary and report and returns the final figures; called in the first process, also after a failure.

        Args:
            session: the run.
            status: ``finished``, ``interrupted``, or a text that starts with ``failed``.
        """
        ...


class Session:
    """A run in progress. Entering it finds the state to resume from and prepares the machine; `run` does the rest.

    The first process holds a lock on the run folder until the session is left.

    Args:
        config: the run; ``folder`` is where a new one goes.

    Attributes:
        first: whether this process writes and prints.
        restored: the state to resume from; None in a new run.
        run_dir: the run folder. In a new run it exists after `Hooks.build`; in all processes except the first it is
            ``config.output_dir``.
        trainer: Lightning's trainer, set after `Hooks.callbacks`.

    Raises:
        ConfigError, CheckpointError: the configuration or the state to resume from cannot be used.
        ConfigError: a folder cannot be written.
        ArcforgeError: another process is using the run to resume.
    """

    trainer: L.Trainer

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._held = ExitStack()
        self.first = int(os.environ.get("RANK", 0)) == 0
        self.console = Console(markup=False, highlight=False, soft_wrap=True, quiet=not self.first)
        self.run_dir = Path(config.output_dir)
        self.restored: TrainingState | None = None

    def __enter__(self) -> Self:
        config = self.config
        check_components(config)
        self._return_to_own_run()
        with ExitStack() as held:
            if config.resume is not None:
                self.run_dir = find_run(config)
                check_writable("resume", self.run_dir)
                self._lock(held)
                self.restored = find_state(config, self.console)
            check_folders(config)
            if (config.trainer.threads or 0) > allowed_cores():
                wanted = f"trainer.threads={config.trainer.threads}"
                self.console.print(f"warning: {wanted}, but this process may use {allowed_cores()} cores: slower")
            use_threads(config.trainer.threads)
            torch.use_deterministic_algorithms(config.trainer.deterministic)
            self.hardware = prepare_hardware(config, self.console)
            self._held = held.pop_all()
        return self

    def _return_to_own_run(self) -> None:
        """Lets a process restarted by torchrun resume its own run, or begin it again if it has no checkpoint."""
        config, own = self.config, run_of_this_launch(self.config)
        if own is None:
            return
        where = f"restarted by torchrun (restart {restarts()}): run {os.path.relpath(own)}"
        if checkpoints(own):
            self.console.print(f"{where} resumes")
            config.resume = str(own)
        else:
            self.console.print(f"{where} begins again: it had no checkpoint yet")
            config.folder = str(own)
            if self.first:
                shutil.rmtree(own)

    def __exit__(self, kind: object, error: object, *place: object) -> None:
        if isinstance(error, OSError) and error.errno in DISK_FULL and error.filename is None:
            error.filename = os.path.relpath(self.run_dir)  # a write to an open file names none
        self._held.close()

    def _lock(self, held: ExitStack) -> None:
        if self.first:
            held.enter_context(locked(self.run_dir))

    def run(self, hooks: Hooks) -> Result:
        """Trains and writes the run's folder.

        Raises:
            ConfigError, DataError, CheckpointError: before any work starts.
            NonFiniteError: a loss or gradient was NaN or infinite; the last checkpoint is kept.
            ArcforgeError: an error of the hooks; the run is then reported as failed.
        """
        if self.restored is not None:
            check_same_run(self.config, self.run_dir, self.restored, self.console, hooks.fixed, hooks.free)
        parts = hooks.build(self)
        self._open(parts.module, hooks.tables)
        stopping = Stopping()
        checkpointing = Checkpointing(
            self.run_dir, parts.tokenizer, self.restored, keep_best=parts.keep_best, usable=self._point
        )
        callbacks = [*hooks.callbacks(self), checkpointing, stopping]
        self.trainer = build_trainer(self.config, self.hardware, self.run_dir, callbacks)
        if parts.module.fraction() < 1.0:
            connect_restarted(self.hardware.identity.collectives)
            try:
                with frozen_garbage():
                    self.trainer.fit(parts.module, parts.batches)
            except NonFiniteError as error:
                self._report_failure(hooks, "failed: not finite")
                step = checkpointing.saved_step
                kept = f"the checkpoint of step {step} is kept" if step >= 0 else "no checkpoint was saved before"
                raise NonFiniteError(f"{error}; {kept} in {os.path.relpath(self.run_dir)}") from error
            except SystemExit as error:
                if isinstance(error.__context__, KeyboardInterrupt):  # Lightning's answer to Ctrl-C; then it is deaf
                    signal.signal(signal.SIGINT, signal.default_int_handler)
                    raise KeyboardInterrupt from error
                raise
            except ArcforgeError:
                self._report_failure(hooks, "failed")
                self._warn_if_untrained(parts.module)
                raise
        else:
            self.console.print(f"nothing left to train: {parts.module.progress.step} steps have used up the budget")
        if stopping.interrupted:
            self.console.print(f"stopped at step {parts.module.progress.step}; resume it with: {resume_command()}")
        else:
            hooks.finish(self)
            self._warn_if_untrained(parts.module)
        tell_loggers(self.trainer, lambda logger: logger.save())
        if not self.first:
            return Result(self.run_dir)
        status = "interrupted" if stopping.interrupted else "finished"
        return Result(self.run_dir, {"status": status, **hooks.report(self, status)})

    def _open(self, module: TrainingModule, tables: Iterable[str]) -> None:
        """Creates the folder of a new run, or rolls a resumed one back to its checkpoint."""
        if self.restored is not None:
            self.restored.restore_model(module)
            for name in tables if self.first else ():
                drop_rows_after(self.run_dir / name, self.restored.step)
            if self.first and module.progress.tokens:
                self._point()
        elif self.first:
            self.run_dir = create_run_dir(Path(self.config.output_dir), self.config.name, self.config.folder)
            self._lock(self._held)
        if self.first:
            write_run_start(self.run_dir, self.config)
        self.console.print(f"run {os.path.relpath(self.run_dir)}")

    def _point(self) -> None:
        """Points ``latest``, and outside a pipeline ``by-name``, at this run, whose weights are trained."""
        root = Path(self.config.output_dir)
        point_latest(root, self.run_dir)
        if self.config.folder is None:
            point_name(root, self.config.name, self.run_dir)

    def _warn_if_untrained(self, module: TrainingModule) -> None:
        """Warns after a run that took steps and trained no token in any of them."""
        if not self.first or module.progress.step == 0 or module.progress.tokens:
            return
        root = Path(self.config.output_dir)
        before = read_latest(root)
        kept = "" if before is None else f"; {root / 'latest'} is still {os.path.relpath(before)}"
        said = f"nothing was trained in {module.progress.step} steps: the weights are the initial ones{kept}"
        self.console.print(f"warning: {said}")

    def _report_failure(self, hooks: Hooks, status: str) -> None:
        if not self.first:
            return
        try:
            hooks.report(self, status)
        except OSError as error:  # a full disk must not hide the cause of the failure
            self.console.print(f"no summary of the failed run: {error}")
