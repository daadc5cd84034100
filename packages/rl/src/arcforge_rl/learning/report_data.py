"""Reads the files of a run of ``arcforge-rl``. What is not there, or cannot be read, is named in `RlRun.problems`.

N: held-out tasks.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from arcforge_core.eval.conversations.figures import wilson
from arcforge_core.train.report_data import Columns, columns_of, read_columns, read_object, read_or_note
from arcforge_rl.learning.figures import ALL

T = TypeVar("T")
Tasks = dict[int, dict[str, NDArray[np.float64]]]
"""Shares by step and domain."""
Z95 = 1.959963984540054
FILES = {
    "config.yaml": "resolved configuration",
    "versions.json": "versions of what the run depends on",
    "metrics.csv": "a row for each step",
    "evaluations.csv": "held-out tasks, a row for each domain",
    "heldout.csv": "held-out tasks, a row for each task",
    "warnings.csv": "figures that left their bounds",
    "rollouts.jsonl": "a line for each rollout",
    "summary.json": "final figures",
}
OPTIONAL = ("warnings.csv",)
"""Files whose absence is good news, or no news."""


@dataclass(frozen=True)
class Rate:
    """A share with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class RlRun:
    """What a run's files say; empty where they say nothing.

    Attributes:
        dir: the run's folder.
        problems: file name -> ``missing`` or why it cannot be read.
        config: text of ``config.yaml``.
        versions, summary: the JSON files.
        metrics: ``metrics.csv``.
        evaluations: ``evaluations.csv`` by domain; all together as `ALL`.
        tasks: share of right tries at each held-out task by step and domain, [N].
        tries: at each held-out task.
        warnings: rows of ``warnings.csv``.
    """

    dir: Path
    problems: dict[str, str]
    config: str
    versions: dict[str, Any]
    summary: dict[str, Any]
    metrics: Columns
    evaluations: dict[str, Columns]
    tasks: Tasks
    tries: int
    warnings: list[tuple[int, str, str]]

    def has(self, *columns: str) -> bool:
        """Says whether each column of the metrics holds a finite number."""
        return all(np.isfinite(self.metrics.get(name, np.empty(0))).any() for name in columns)

    def last(self, name: str) -> float | None:
        """Returns the last finite number of a column of the metrics."""
        column = self.metrics.get(name, np.empty(0))
        finite = column[np.isfinite(column)]
        return float(finite[-1]) if finite.size else None

    def total(self, name: str) -> float | None:
        """Returns the sum of a column of the metrics."""
        return float(np.nansum(self.metrics[name])) if self.has(name) else None

    def number(self, name: str) -> float | None:
        """Returns a finite number of the summary."""
        value = self.summary.get(name)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    @property
    def domains(self) -> list[str]:
        """Returns the domains; `ALL` only where there are several."""
        own = sorted(name for name in self.evaluations if name != ALL)
        return own if len(own) == 1 else [*own, *([ALL] if ALL in self.evaluations else [])]

    @property
    def evaluated(self) -> list[int]:
        """Returns the steps whose held-out tasks are known one by one, in order."""
        return sorted(self.tasks)

    def share(self, step: int, domain: str = ALL) -> Rate | None:
        """Returns pass@1 of an evaluation."""
        share_N = self.tasks.get(step, {}).get(domain)
        return None if share_N is None else rate(share_N, self.tries)

    def gain(self, domain: str = ALL) -> Rate | None:
        """Returns what pass@1 has gained from the first evaluation to the last, task by task."""
        if len(self.tasks) < 2:
            return None
        first, last = (self.tasks[step].get(domain) for step in (self.evaluated[0], self.evaluated[-1]))
        if first is None or last is None or first.size != last.size:
            return None
        return paired(first, last)


def rate(share_N: NDArray[np.float64], tries: int) -> Rate:
    """Returns the mean of tasks' shares with Wilson's interval.

    Tries at one task are alike, so that they count as fewer: as many as would give a mean this sure, at least one a
    task and at most all (the design effect of survey sampling).
    """
    mean, count = float(share_N.mean()), share_N.size
    effective = float(count * tries)
    if count > 1 and (variance := float(share_N.var(ddof=1)) / count) > 0:
        effective = min(max(mean * (1 - mean) / variance, count), count * tries)
    return Rate(mean, *wilson(mean * effective, effective))


def paired(before_N: NDArray[np.float64], after_N: NDArray[np.float64]) -> Rate:
    """Returns the mean of the tasks' differences with its normal 95% interval."""
    gain_N = after_N - before_N
    mean = float(gain_N.mean())
    half = Z95 * float(gain_N.std(ddof=1)) / math.sqrt(gain_N.size) if gain_N.size > 1 else math.inf
    return Rate(mean, mean - half, mean + half)


def read_run(run_dir: Path) -> RlRun:
    """Reads a run's folder, in whatever state it was left, but for the rollouts."""
    problems: dict[str, str] = {}

    def read(name: str, parse: Callable[[str], T], empty: T) -> T:
        return read_or_note(run_dir / name, parse, empty, problems)

    nothing: Tasks = {}
    tasks, tries = read("heldout.csv", _tasks, (nothing, 0))
    run = RlRun(
        dir=run_dir,
        config=read("config.yaml", str, ""),
        versions=read("versions.json", read_object, {}),
        summary=read("summary.json", read_object, {}),
        metrics=read("metrics.csv", read_columns, {}),
        evaluations=read("evaluations.csv", _evaluations, {}),
        tasks=tasks,
        tries=tries,
        warnings=read("warnings.csv", _warnings, []),
        problems=problems,
    )
    for name in OPTIONAL:
        if problems.get(name) == "missing":
            del problems[name]
    return run


def _rows(text: str) -> Iterator[Mapping[str, str]]:
    return iter(csv.DictReader(text.splitlines()))


def _evaluations(text: str) -> dict[str, Columns]:
    by_domain: dict[str, list[Mapping[str, str]]] = {}
    for row in _rows(text):
        by_domain.setdefault(row["domain"], []).append(row)
    return {domain: columns_of(rows) for domain, rows in by_domain.items()}


def _tasks(text: str) -> tuple[Tasks, int]:
    """Reads shares by step and domain; the last row of a task counts, so that a step tried twice is there once."""
    shares: dict[int, dict[int, tuple[str, float]]] = {}
    tries = 0
    for row in _rows(text):
        right, tries = int(row["right"]), int(row["tries"])
        if not 0 <= right <= tries > 0:
            raise ValueError(f"{right} of {tries} tries are right")
        shares.setdefault(int(row["step"]), {})[int(row["task"])] = row["domain"], right / tries
    found: Tasks = {}
    for step, of_tasks in shares.items():
        parts: dict[str, list[float]] = {}
        for _, (domain, share) in sorted(of_tasks.items()):
            for name in (domain, ALL):
                parts.setdefault(name, []).append(share)
        found[step] = {name: np.array(values) for name, values in parts.items()}
    return found, tries


def _warnings(text: str) -> list[tuple[int, str, str]]:
    return [(int(row["step"]), row["figure"], row["message"]) for row in _rows(text)]
