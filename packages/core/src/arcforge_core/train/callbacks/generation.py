"""Evaluation by generation in a training run: before the first step, every N steps, and at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
from rich.console import Console

from arcforge_core.eval.conversations.evaluate import Report, evaluate
from arcforge_core.eval.conversations.figures import conversation_row, headline, table
from arcforge_core.files.rundir import write_json
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.callbacks.metrics import append_row, log_scalars
from arcforge_core.train.module import LanguageModelModule

GENERATION_FILE, ROWS_FILE = "generation.json", "generation.csv"
COLUMNS = (
    "conversations", "answers", "exact", "exact_low", "exact_high", "calls", "calls_valid", "thinking_on_messages",
    "thinking_on", "thinking_off_messages", "thinking_off", "truncated", "too_many_calls", "tokens",
)  # fmt: skip


class Generation(L.Callback):
    """Writes ``generation.csv`` with a row per source, and ``generation.json``, which also has sample conversations.

    Args:
        tokenizer: tokenizer of the model.
        run_dir: folder of the files.
        console: prints the last table.
    """

    def __init__(self, tokenizer: Tokenizer, run_dir: Path, console: Console) -> None:
        self.tokenizer, self.run_dir, self.console = tokenizer, run_dir, console

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Evaluates the initial model of a new run."""
        assert isinstance(module, LanguageModelModule)
        if module.config.generation.before and module.progress.step == 0:
            self.evaluate(trainer, module)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Evaluates every N steps; the session calls `evaluate` at the end."""
        assert isinstance(module, LanguageModelModule)
        every = module.config.generation.every
        if every is not None and module.progress.step % every == 0 and module.fraction() < 1.0:
            self.evaluate(trainer, module)

    def evaluate(self, trainer: L.Trainer, module: LanguageModelModule) -> None:
        """Plays all conversations once and writes the figures; does nothing if no files are configured."""
        config = module.config.generation
        if not config.files or not trainer.is_global_zero:
            return
        report = evaluate(module.model, self.tokenizer, config)
        step = module.progress.step
        for source, figures in report.figures.items():
            cells = {name: figures.get(name, "") for name in COLUMNS}
            append_row(self.run_dir / ROWS_FILE, {"step": step, "source": source, **cells}, key=("step", "source"))
        log_scalars(trainer, {f"generation_{name}": value for name, value in headline(report.figures).items()}, step)
        found = {
            "step": step,
            "figures": report.figures,
            "rejected": len(report.rejections),
            "samples": shown(report, config.samples),
        }
        earlier = [one for one in read_evaluations(self.run_dir) if one["step"] < step]
        write_json(self.run_dir / GENERATION_FILE, {"evaluations": [*earlier, found]})
        self.console.print(f"played at step {step}\n{table(report.figures)}")


def shown(report: Report, count: int) -> list[dict[str, Any]]:
    """Returns the rows of the first `count` conversations of each source."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for rollout in report.rollouts:
        of_source = rows.setdefault(rollout.domain, [])
        if len(of_source) < count:
            of_source.append(conversation_row(rollout))
    return [row for of_source in rows.values() for row in of_source]


def read_evaluations(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the evaluations of a run by step; empty if there were none."""
    path = run_dir / GENERATION_FILE
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["evaluations"] if path.exists() else []
    return found


def figures_of(run_dir: Path) -> dict[str, float]:
    """Returns the last headline figures, and those of step 0 with the suffix ``_before``."""
    evaluations = read_evaluations(run_dir)
    if not evaluations:
        return {}
    figures = headline(evaluations[-1]["figures"])
    if evaluations[0]["step"] == 0 and len(evaluations) > 1:
        figures |= {f"{name}_before": value for name, value in headline(evaluations[0]["figures"]).items()}
    return {f"generation_{name}": value for name, value in figures.items()}
