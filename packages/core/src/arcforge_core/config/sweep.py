"""The jobs of a sweep as tables: one row per job, and one per group of seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from arcforge_core.console.result import Result

MISSING = "missing"


@dataclass
class SweepJob:
    """One job of a sweep: its overrides by field, and its result."""

    number: int
    overrides: dict[str, str]
    result: Result | None = None
    error: Exception | None = None

    @property
    def outcome(self) -> str:
        """``ok``, or one line with the failure."""
        return f"failed: {' '.join(str(self.error).split())}" if self.error else "ok"


def table(jobs: Sequence[SweepJob]) -> list[dict[str, str]]:
    """Returns one row per job: the overrides that differ between jobs, its outcome and its final figures."""
    differing = _differing(jobs)
    figures = list(dict.fromkeys(name for job in jobs if job.result for name in job.result.figures))
    rows = []
    for job in jobs:
        row = {"job": str(job.number)} | {key: job.overrides.get(key, "") for key in differing}
        row["outcome"] = job.outcome
        for name in figures:
            value = job.result.figures.get(name) if job.result else None
            row[name] = MISSING if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
        row["folder"] = str(job.result.dir) if job.result else MISSING
        rows.append(row)
    return rows


def _differing(jobs: Sequence[SweepJob]) -> list[str]:
    keys = dict.fromkeys(key for job in jobs for key in job.overrides)
    return [key for key in keys if len({job.overrides.get(key) for job in jobs}) > 1]


def over_seeds(jobs: Sequence[SweepJob]) -> list[dict[str, str]]:
    """Returns one row for jobs that differ in their seed only: each figure's mean, and the lowest and the highest.

    Empty if no two jobs do. Figures that are not numbers, or that a job lacks, are left out.
    """
    differing = _differing(jobs)
    groups: dict[tuple[str, ...], list[SweepJob]] = {}
    for job in jobs:
        groups.setdefault(tuple(job.overrides.get(key, "") for key in differing if key != "seed"), []).append(job)
    if "seed" not in differing or len(groups) == len(jobs):
        return []
    rows = []
    for values, group in groups.items():
        done = [job.result.figures for job in group if job.result]
        row = dict(zip((key for key in differing if key != "seed"), values, strict=True)) | {"seeds": str(len(done))}
        for name in dict.fromkeys(name for metrics in done for name in metrics):
            found = [value for metrics in done if isinstance(value := metrics.get(name), int | float)]
            if len(found) == len(done):
                spread = f" ({min(found):.6g} to {max(found):.6g})" if min(found) != max(found) else ""
                row[name] = f"{mean(found):.6g}{spread}"
        rows.append(row)
    return rows


def summary_text(jobs: Sequence[SweepJob]) -> str:
    """Returns the table for a terminal: a column per job, a line per figure, without reasons of failures."""
    rows = table(jobs)
    lines = [[name, *(row[name] for row in rows)] for name in rows[0] if name not in ("outcome", "folder")]
    lines.append(["outcome", *("failed" if job.error else "ok" for job in jobs)])
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Returns lines of cells as text in columns."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
