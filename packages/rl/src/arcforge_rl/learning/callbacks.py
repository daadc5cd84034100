"""What a run writes and shows: metrics, rollouts, evaluations on held-out tasks, a line for each step."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, ClassVar

import lightning as L
from rich.console import Console

from arcforge_core.chat.openai import message_for_template
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.train.callbacks.metrics import append_row
from arcforge_core.train.rundir import write_json
from arcforge_rl.learning.figures import ALL, evaluation_figures, rights
from arcforge_rl.learning.module import PolicyModule
from arcforge_rl.learning.monitor import WARNINGS_FILE
from arcforge_rl.learning.tensorboard import log_samples
from arcforge_rl.rollouts.collect import Rollout

METRICS_FILE, EVALUATIONS_FILE, ROLLOUTS_FILE = "metrics.csv", "evaluations.csv", "rollouts.jsonl"
HELDOUT_FILE = "heldout.csv"


class Records(L.Callback):
    """Writes ``metrics.csv``, a row for each step, and ``rollouts.jsonl``, a line for each rollout.

    Args:
        run_dir: where the files go.
        tokenizer: the policy's.
    """

    FILES: ClassVar[tuple[str, ...]] = (METRICS_FILE, EVALUATIONS_FILE, HELDOUT_FILE, WARNINGS_FILE)

    def __init__(self, run_dir: Path, tokenizer: Tokenizer) -> None:
        self.run_dir, self.tokenizer = run_dir, tokenizer
        self._columns: list[str] = []

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Drops the rollouts of steps that are taken again."""
        assert isinstance(module, PolicyModule)
        path = self.run_dir / ROLLOUTS_FILE
        if path.exists():
            lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
            kept = [line for line in lines if json.loads(line)["step"] <= module.progress.step]
            path.write_text("".join(kept), encoding="utf-8")

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes the step."""
        assert isinstance(module, PolicyModule) and module.record is not None
        progress, figures = module.progress, module.record.figures
        row = {
            "step": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 3),
            "progress": module.fraction(),
            **figures,
        }
        write_row(self.run_dir / METRICS_FILE, row)
        if trainer.logger is not None:
            trainer.logger.log_metrics({k: v for k, v in row.items() if k != "step"}, step=progress.step)
        collected, shown = module.record.collected, module.config.trainer.shown
        with (self.run_dir / ROLLOUTS_FILE).open("a", encoding="utf-8") as file:
            for number, group in enumerate((*collected.kept, *collected.dropped)):
                learnt = number < len(collected.kept)
                for rollout in group:
                    line = {"step": progress.step, **as_row(rollout), "learnt": learnt}
                    if learnt and number < shown:
                        line["tokens"] = token_rows(rollout, self.tokenizer)
                    file.write(json.dumps(line, ensure_ascii=True) + "\n")

    def summarise(self, module: PolicyModule, evaluations: Evaluations, status: str) -> dict[str, float]:
        """Writes ``summary.json`` and returns its figures that are numbers."""
        progress = module.progress
        figures: dict[str, float] = {"steps": progress.step, "tokens": progress.tokens, "seconds": progress.seconds}
        if module.record is not None:
            figures |= {f"last_{name}": module.record.figures[name] for name in ("reward", "length")}
        for when, found in (("before", evaluations.first), ("after", evaluations.last)):
            for domain, of in (found or {}).items():
                names = [name for name in of if name.startswith(("pass@", "maj@"))]
                place = "" if domain == ALL else f"_{domain}"
                figures |= {f"{name}{place}_{when}": of[name] for name in names}
        write_json(self.run_dir / "summary.json", {"status": status, **figures})
        return figures


class Evaluations(L.Callback):
    """Tries held-out tasks every `trainer.eval_every` steps.

    Writes ``evaluations.csv``, a row for each domain, and ``heldout.csv``, a row for each task.

    Attributes:
        first, last: figures by domain; a resumed run's first are those that it began with.
        groups: the tries of the last evaluation, task by task.
        last_step: when that was; -1 before.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.groups: list[list[Rollout]] = []
        self.first = first_evaluation(run_dir / EVALUATIONS_FILE)
        self.last: dict[str, dict[str, float]] | None = None
        self.last_step = -1

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Evaluates what the run begins with."""
        assert isinstance(module, PolicyModule)
        if self.first is None and module.progress.step == 0:
            self.evaluate(trainer, module)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Evaluates when it is due; at the end `evaluate` is called for itself."""
        assert isinstance(module, PolicyModule)
        if module.progress.step % module.config.trainer.eval_every == 0:
            self.evaluate(trainer, module)

    def evaluate(self, trainer: L.Trainer, module: PolicyModule) -> None:
        """Tries the tasks once; nothing where there are none. The time does not count as training."""
        if not module.config.evaluation.tasks:
            return
        self.groups = module.sampler.evaluate()
        self.last = evaluation_figures(self.groups)
        self.first = self.first or self.last
        self.last_step = module.progress.step
        if trainer.is_global_zero:
            self._write(trainer, module, self.last)
        module.progress.restart_clock()

    def _write(self, trainer: L.Trainer, module: PolicyModule, found: dict[str, dict[str, float]]) -> None:
        for domain, figures in found.items():
            place = {"step": self.last_step, "seconds": round(module.progress.seconds, 3), "domain": domain}
            append_row(self.run_dir / EVALUATIONS_FILE, {**place, **figures})
        for number, (group, right) in enumerate(zip(self.groups, rights(self.groups), strict=True)):
            of_task = {"step": self.last_step, "task": number, "domain": group[0].domain}
            append_row(self.run_dir / HELDOUT_FILE, {**of_task, "right": right, "tries": len(group)})
        if trainer.logger is not None:
            scalars = {f"heldout_{name}": value for name, value in found[ALL].items()}
            trainer.logger.log_metrics(scalars, step=self.last_step)
            record = module.record
            log_samples(trainer.logger, self.last_step, self.groups[0], record.collected.everything if record else ())


class ConsoleLines(L.Callback):
    """Prints a line for each step, and for each evaluation.

    Args:
        console: where to print.
        evaluations: comes before this callback.
    """

    def __init__(self, console: Console, evaluations: Evaluations) -> None:
        self.console, self.evaluations = console, evaluations
        self._told = -1

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Tells what the run begins with."""
        self._tell()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Prints the step."""
        assert isinstance(module, PolicyModule) and module.record is not None
        figures = module.record.figures
        learnt = "logprob_gap" in figures
        gap = f"  gap {figures['logprob_gap']:.1e}  entropy {figures['entropy']:.3f}" if learnt else ""
        self.console.print(
            f"{module.fraction():4.0%}  step {module.progress.step}  reward {figures['reward']:.3f}  "
            f"groups {figures['groups']:.0f}  length {figures['length']:.0f}{gap}  {module.progress.seconds:,.0f} s"
        )
        self._tell()

    def _tell(self) -> None:
        if self.evaluations.last is not None and self.evaluations.last_step != self._told:
            self._told = self.evaluations.last_step
            for domain, figures in self.evaluations.last.items():
                shown = "  ".join(f"{name} {value:.1%}" for name, value in figures.items() if "@" in name)
                self.console.print(f"held-out {domain} at step {self._told}: {shown}  length {figures['length']:.0f}")


def first_evaluation(path: Path) -> dict[str, dict[str, float]] | None:
    """Returns the figures by domain of the first evaluation that a file has; None where there is none."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        row.pop("domain"): {name: float(cell) for name, cell in row.items()}
        for row in rows
        if row["step"] == rows[0]["step"]
    } or None


def write_row(path: Path, row: dict[str, Any]) -> None:
    """Appends a row whose columns may be others than before: a step without anything to learn from has fewer."""
    if not path.exists():
        append_row(path, row)
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    header = lines[0].split(",")
    new = [name for name in row if name not in header]
    if new:
        commas = "," * len(new)
        path.write_text("\n".join([lines[0] + "," + ",".join(new), *(line + commas for line in lines[1:])]) + "\n")
        header += new
    append_row(path, {name: row.get(name, "") for name in header})


def as_row(rollout: Rollout) -> dict[str, Any]:
    """Returns what people want to read about a rollout."""
    return {
        "group": rollout.trace.group_id,
        "rollout": rollout.trace.rollout_id,
        "task": rollout.task.key,
        "domain": rollout.domain,
        "messages": [message_for_template(message) for message in rollout.episode.messages],
        "answer": rollout.task.answer,
        "rewards": dict(rollout.outcome.rewards),
        "reasons": dict(rollout.outcome.reasons),
        "length": rollout.trace.num_sampled,
        "truncated": rollout.trace.truncated,
    }


def token_rows(rollout: Rollout, tokenizer: Tokenizer) -> list[list[dict[str, Any]]]:
    """Returns the tokens of each branch: text, and of the sampled ones log-probability, advantage and factor."""
    found = []
    for branch in rollout.trace.branches:
        rows: list[dict[str, Any]] = []
        for place, token in enumerate(branch.ids):
            row: dict[str, Any] = {"text": tokenizer.decode([token])}
            if branch.sampled[place]:
                row["logprob"] = round(branch.logprobs[place], 5)
                for name, stream in (("advantage", "advantages"), ("factor", "factor")):
                    if stream in branch.streams:
                        row[name] = round(float(branch.streams[stream][place]), 5)
            rows.append(row)
        found.append(rows)
    return found
