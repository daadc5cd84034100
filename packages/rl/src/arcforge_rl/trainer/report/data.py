"""Reads the files of a run of ``arcforge-rl``.

N: held-out tasks.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arcforge_core.eval.conversations.figures import wilson
from arcforge_core.report.files import Columns, FileReader, RunFiles, columns_of
from arcforge_rl.trainer.figures import ALL

Tasks = dict[int, dict[str, NDArray[np.float64]]]
"""Shares by step and domain."""
Z95 = 1.959963984540054
FILES = {
    "config.yaml": "resolved configuration",
    "versions.json": "versions of the run's dependencies",
    "metrics.csv": "one row per step",
    "evaluations.csv": "held-out tasks, one row per domain",
    "heldout.csv": "held-out tasks, one row per task",
    "labels.csv": "held-out tasks by category and kind",
    "warnings.csv": "figures outside their bounds",
    "rollouts.jsonl": "one line per rollout",
    "summary.json": "final figures",
}
OPTIONAL = ("warnings.csv", "labels.csv")
"""Files that only runs with warnings, or with labelled tasks, have."""
Labels = dict[str, dict[str, tuple[float, float]]]
"""By label and figure: the value at the first and at the last evaluation."""


@dataclass(frozen=True)
class Rate:
    """A share with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class RlRun(RunFiles):
    """The files of a run of ``arcforge-rl``, without its rollouts; fields of absent files are empty.

    Attributes:
        evaluations: ``evaluations.csv`` by domain, with all domains together as `ALL`.
        tasks: share of right rollouts of each held-out task by step and domain, [N].
        tries: rollouts per held-out task.
        warnings: rows of ``warnings.csv``.
        labels: first and last values of ``labels.csv``.
    """

    evaluations: dict[str, Columns]
    tasks: Tasks
    tries: int
    warnings: list[tuple[int, str, str]]
    labels: Labels

    @property
    def domains(self) -> list[str]:
        """Returns the domains, with `ALL` only if there are several."""
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
        """Returns the gain of pass@1 from the first to the last evaluation, paired by task."""
        if len(self.tasks) < 2:
            return None
        first, last = (self.tasks[step].get(domain) for step in (self.evaluated[0], self.evaluated[-1]))
        if first is None or last is None or first.size != last.size:
            return None
        return paired(first, last)


def rate(share_N: NDArray[np.float64], tries: int) -> Rate:
    """Returns the mean of the tasks' shares with Wilson's interval.

    Rollouts of one task are correlated, so they count as fewer: the effective sample size (design effect of survey
    sampling), at least one per task and at most all.
    """
    mean, count = float(share_N.mean()), share_N.size
    effective = float(count * tries)
    if count > 1 and (variance := float(share_N.var(ddof=1)) / count) > 0:
        effective = min(max(mean * (1 - mean) / variance, count), count * tries)
    return Rate(mean, *wilson(mean * effective, effective))


def paired(before_N: NDArray[np.float64], after_N: NDArray[np.float64]) -> Rate:
    """Returns the mean of the tasks' differences with its 95% interval.

    The interval is that of Agresti and Min for matched pairs (Statistics in Medicine 24, 2005): half a task is added to
    each of the four outcomes, two of which are the differences +1 and -1. Equal differences thus have a width, too.
    """
    gain_N, count = after_N - before_N, after_N.size + 2
    centre = float(gain_N.sum()) / count
    variance = (float(np.square(gain_N).sum()) + 1) / count - centre**2
    half = Z95 * math.sqrt(variance / count)
    return Rate(float(gain_N.mean()), centre - half, centre + half)


def read_run(run_dir: Path) -> RlRun:
    """Reads a run folder, which may be incomplete, without the rollouts."""
    reader, nothing = FileReader(run_dir, OPTIONAL), dict[int, dict[str, NDArray[np.float64]]]()
    tasks, tries = reader.read("heldout.csv", _tasks, (nothing, 0))
    return RlRun(
        **reader.common(),
        evaluations=reader.read("evaluations.csv", _evaluations, {}),
        tasks=tasks,
        tries=tries,
        warnings=reader.read("warnings.csv", _warnings, []),
        labels=reader.read("labels.csv", _labels, {}),
    )


def _rows(text: str) -> Iterator[Mapping[str, str]]:
    return iter(csv.DictReader(text.splitlines()))


def _evaluations(text: str) -> dict[str, Columns]:
    by_domain: dict[str, list[Mapping[str, str]]] = {}
    for row in _rows(text):
        by_domain.setdefault(row["domain"], []).append(row)
    return {domain: columns_of(rows) for domain, rows in by_domain.items()}


def _tasks(text: str) -> tuple[Tasks, int]:
    """Reads shares by step and domain; the last row of a task counts, because a resumed run may repeat a step."""
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


def _labels(text: str) -> Labels:
    found: Labels = {}
    for row in _rows(text):
        of_label, value = found.setdefault(row["label"], {}), float(row["value"])
        of_label[row["figure"]] = of_label.get(row["figure"], (value, value))[0], value
    return found
