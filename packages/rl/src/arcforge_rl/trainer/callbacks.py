"""Callbacks of reinforcement learning: rollouts to a file, evaluations on held-out tasks."""

from __future__ import annotations

import csv
import json
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning as L
from rich.console import Console

from arcforge_core.console.progress import say, working
from arcforge_core.errors import ArcforgeError
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.callbacks.metrics import append_row, append_rows, log_scalars, tell_loggers
from arcforge_core.train.callbacks.stopping import stopping_of
from arcforge_rl.rollouts.collect import TracedRollout
from arcforge_rl.trainer.figures import ALL, evaluation_figures, label_figures, rights, why_not_measured
from arcforge_rl.trainer.module import PolicyModule
from arcforge_rl.trainer.tensorboard import log_samples

EVALUATIONS_FILE, ROLLOUTS_FILE, HELDOUT_FILE = "evaluations.csv", "rollouts.jsonl", "heldout.csv"
LABELS_FILE = "labels.csv"


class RolloutWriter(L.Callback):
    """Writes ``rollouts.jsonl``, one line per rollout.

    Args:
        run_dir: folder of the file.
        tokenizer: tokenizer of the policy.
    """

    def __init__(self, run_dir: Path, tokenizer: Tokenizer) -> None:
        self.path, self.tokenizer = run_dir / ROLLOUTS_FILE, tokenizer

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Removes the rollouts of steps that will be repeated."""
        assert isinstance(module, PolicyModule)
        if self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]
            kept = [line for line in whole if json.loads(line)["step"] <= module.progress.step]
            self.path.write_text("".join(kept), encoding="utf-8")

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes the rollouts of the step."""
        assert isinstance(module, PolicyModule) and module.record is not None
        collected, shown = module.record.result, module.config.trainer.shown
        with self.path.open("a", encoding="utf-8") as file:
            for number, group in enumerate((*collected.kept, *collected.dropped)):
                learnt = number < len(collected.kept)
                for rollout in group:
                    line = {"step": module.progress.step, **record(rollout), "learnt": learnt}
                    if learnt and number < shown:
                        line["tokens"] = token_rows(rollout, self.tokenizer)
                    file.write(json.dumps(line, ensure_ascii=True) + "\n")


class Evaluations(L.Callback):
    """Evaluates on held-out tasks every `trainer.eval_every` steps.

    Writes ``evaluations.csv``, one row per domain, ``heldout.csv``, one row per task, and, where the environment gives
    labels, ``labels.csv``: one row per figure of each domain, category and kind.

    Args:
        run_dir: folder of the files.
        console: prints a line per domain; None prints nothing.

    Attributes:
        first, last: figures by domain; in a resumed run `first` is still the evaluation at its original start.
            `last` is None if the last one measured nothing.
        groups: the rollouts of the last evaluation, task by task.
        last_step: the step of the last evaluation that has ended, -1 before any.
        asked_step: of the last one that has begun.
    """

    def __init__(self, run_dir: Path, console: Console | None = None) -> None:
        self.run_dir, self.console = run_dir, console
        self.groups: list[list[TracedRollout]] = []
        self.first = first_evaluation(run_dir / EVALUATIONS_FILE)
        self.last: dict[str, dict[str, float]] | None = None
        self.last_step = self.asked_step = -1
        self._thread: ThreadPoolExecutor | None = None
        self._running: tuple[int, float, Future[list[list[TracedRollout]]]] | None = None

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Evaluates the initial policy of a new run, and a resumed one's whose evaluation was cut off."""
        assert isinstance(module, PolicyModule)
        step = module.progress.step
        if step % module.config.trainer.eval_every == 0 and step not in evaluated_steps(self.run_dir):
            self.evaluate(trainer, module)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Evaluates every N steps; the session calls `evaluate` at the end."""
        assert isinstance(module, PolicyModule)
        if self._running is not None and self._running[2].done():
            self.settle(trainer, module)
        if module.progress.step % module.config.trainer.eval_every == 0:
            self.evaluate(trainer, module)

    def evaluate(self, trainer: L.Trainer, module: PolicyModule) -> None:
        """Plays the held-out tasks, if there are any. The time does not count as training.

        A stop that is requested meanwhile cuts it off and leaves no figures: the resumed run evaluates. An engine of
        its own plays them in a thread; their figures are there after `settle`. An evaluation in which every task has a
        failed rollout leaves no figures either.

        Raises:
            ArcforgeError: every task has a failed rollout, and none was measured since the run began.
        """
        if not module.config.evaluation.tasks:
            return
        self.settle(trainer, module)
        self.asked_step, seconds = module.progress.step, module.progress.seconds
        if module.sampler.evaluator is not None:
            module.pin()
            self._thread = self._thread or ThreadPoolExecutor(1, "arcforge-evaluation")
            self._running = self.asked_step, seconds, self._thread.submit(module.sampler.evaluate)
            return
        alone = module.source.alone() if module.config.evaluation.engine == "pause" else nullcontext()
        with working("playing held-out tasks") if trainer.is_global_zero else nullcontext(), alone:
            groups = stopping_of(trainer).between_steps(trainer, module, module.sampler.evaluate)
        if groups is not None:
            self._take(trainer, module, self.asked_step, seconds, groups)
            module.progress.restart_clock()

    def settle(self, trainer: L.Trainer, module: PolicyModule) -> None:
        """Waits for the evaluation in a thread, if there is one, and takes its figures; a stop cuts the wait off."""
        if self._running is None:
            return
        step, seconds, playing = self._running
        groups = stopping_of(trainer).between_steps(trainer, module, playing.result)
        self._running = None
        if groups is not None:
            self._take(trainer, module, step, seconds, groups)

    def close(self) -> None:
        """Ends the thread; an evaluation that runs there ends with its engine."""
        if self._thread is not None:
            self._thread.shutdown(wait=self._running is None, cancel_futures=True)

    def _take(
        self, trainer: L.Trainer, module: PolicyModule, step: int, seconds: float, groups: list[list[TracedRollout]]
    ) -> None:
        if why := why_not_measured(groups):
            if self.first is None:
                raise ArcforgeError(why)
            self.last = None
            if trainer.is_global_zero:
                say(f"step {step}: nothing is measured: {why}")
            return
        self.groups, self.last_step = groups, step
        self.last = evaluation_figures(groups)
        self.first = self.first or self.last
        if trainer.is_global_zero:
            self._write(trainer, module, self.last, seconds)

    def _write(
        self, trainer: L.Trainer, module: PolicyModule, found: dict[str, dict[str, float]], seconds: float
    ) -> None:
        place = {"step": self.last_step, "seconds": round(seconds, 3)}
        for domain, figures in found.items():
            append_row(self.run_dir / EVALUATIONS_FILE, {**place, "domain": domain, **figures}, key=("step", "domain"))
            if self.console is not None:
                shown = "  ".join(f"{name} {value:.1%}" for name, value in figures.items() if "@" in name)
                length = f"length {figures['length']:.0f}"
                self.console.print(f"held-out {domain} at step {self.last_step}: {shown}  {length}")
        rows = [
            {"step": self.last_step, "task": n, "domain": group[0].domain, "right": right, "tries": len(group)}
            for n, (group, right) in enumerate(zip(self.groups, rights(self.groups), strict=True))
            if not any(rollout.outcome.failure for rollout in group)
        ]
        append_rows(self.run_dir / HELDOUT_FILE, rows, key=("step", "task"))
        labelled = [
            {"step": self.last_step, "label": label, "figure": name, "value": value}
            for label, figures in label_figures(self.groups).items()
            for name, value in figures.items()
        ]
        if labelled:
            append_rows(self.run_dir / LABELS_FILE, labelled, key=("step", "label", "figure"))
        log_scalars(trainer, {f"heldout_{name}": value for name, value in found[ALL].items()}, self.last_step)
        rollouts = module.record.result.everything if module.record else ()
        tell_loggers(trainer, lambda logger: log_samples([logger], self.last_step, self.groups[0], rollouts))


def evaluated_steps(run_dir: Path) -> set[int]:
    """Returns the steps after which a run was evaluated."""
    path = run_dir / EVALUATIONS_FILE
    if not path.exists():
        return set()
    with path.open(encoding="utf-8", newline="") as file:
        return {int(row["step"]) for row in csv.DictReader(file)}


def first_evaluation(path: Path) -> dict[str, dict[str, float]] | None:
    """Returns the figures by domain of the first evaluation in a file, or None."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        row.pop("domain"): {name: float(cell) for name, cell in row.items() if cell}
        for row in rows
        if row["step"] == rows[0]["step"]
    } or None


def record(rollout: TracedRollout) -> dict[str, Any]:
    """Returns the record of a rollout, named as its trace and its group are."""
    return {**rollout.record(), "rollout": rollout.trace.rollout_id, "group": rollout.trace.group_id}


def token_rows(rollout: TracedRollout, tokenizer: Tokenizer) -> list[list[dict[str, Any]]]:
    """Returns the tokens of each branch as text, sampled ones with log-probability, advantage and factor."""
    found = []
    for branch in rollout.trace.branches:
        rows: list[dict[str, Any]] = []
        for place, token in enumerate(branch.ids.tolist()):
            row: dict[str, Any] = {"text": tokenizer.decode([token])}
            if branch.sampled[place]:
                row["logprob"] = round(float(branch.logprobs[place]), 5)
                for name, stream in (("advantage", "advantages"), ("factor", "factor")):
                    if stream in branch.streams:
                        row[name] = round(float(branch.streams[stream][place]), 5)
            rows.append(row)
        found.append(rows)
    return found
