"""What a sweep leaves behind: a table of its jobs, ``summary.csv`` and a page that compares them.

Written anew after every job, so that a sweep that is stopped keeps what it has. A run is read from its own
files only; what is not there is called missing.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean
from typing import Protocol

MISSING = "missing"


class JobResult(Protocol):
    """What a job returns: the run's folder and its final figures; it may have a `page`, a `PageWriter`."""

    @property
    def dir(self) -> Path:
        """The run's folder."""

    @property
    def metrics(self) -> Mapping[str, float | str]:
        """Final figures by name."""


@dataclass
class Job:
    """One job of a sweep: its overrides by field, and what came of it."""

    number: int
    overrides: dict[str, str]
    result: JobResult | None = None
    error: Exception | None = None

    @property
    def outcome(self) -> str:
        """``ok``, or why it failed in one line."""
        return f"failed: {' '.join(str(self.error).split())}" if self.error else "ok"


PageWriter = Callable[[Path, Sequence[Job]], Path]
"""Writes a page into a sweep's folder from all of its jobs, and returns where it is."""


def table(jobs: Sequence[Job]) -> list[dict[str, str]]:
    """Returns one row per job: the overrides that differ between jobs, its outcome and its final figures."""
    differing = _differing(jobs)
    figures = list(dict.fromkeys(name for job in jobs if job.result for name in job.result.metrics))
    rows = []
    for job in jobs:
        row = {"job": str(job.number)} | {key: job.overrides.get(key, "") for key in differing}
        row["outcome"] = job.outcome
        for name in figures:
            value = job.result.metrics.get(name) if job.result else None
            row[name] = MISSING if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
        row["folder"] = str(job.result.dir) if job.result else MISSING
        rows.append(row)
    return rows


def _differing(jobs: Sequence[Job]) -> list[str]:
    keys = dict.fromkeys(key for job in jobs for key in job.overrides)
    return [key for key in keys if len({job.overrides.get(key) for job in jobs}) > 1]


def over_seeds(jobs: Sequence[Job]) -> list[dict[str, str]]:
    """Returns one row for jobs that differ in their seed only: each figure's mean, and the lowest and the highest.

    Empty where no two jobs do. Figures that are no numbers, or that a job lacks, are left out.
    """
    differing = _differing(jobs)
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(tuple(job.overrides.get(key, "") for key in differing if key != "seed"), []).append(job)
    if "seed" not in differing or len(groups) == len(jobs):
        return []
    rows = []
    for values, group in groups.items():
        done = [job.result.metrics for job in group if job.result]
        row = dict(zip((key for key in differing if key != "seed"), values, strict=True)) | {"seeds": str(len(done))}
        for name in dict.fromkeys(name for metrics in done for name in metrics):
            found = [value for metrics in done if isinstance(value := metrics.get(name), int | float)]
            if len(found) == len(done):
                row[name] = f"{mean(found):.6g} ({min(found):.6g} to {max(found):.6g})"
        rows.append(row)
    return rows


def summary_text(jobs: Sequence[Job]) -> str:
    """Returns the table for a terminal: a column per job, a line per figure; reasons of failures are told apart."""
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


def write_comparison(folder: Path, jobs: Sequence[Job]) -> list[Path]:
    """Writes ``summary.csv``, ``index.html`` and the pages that jobs bring into `folder`; returns the pages."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = table(jobs)
    writers = {page.__qualname__: page for job in jobs if (page := getattr(job.result, "page", None)) is not None}
    pages = [write(folder, jobs) for write in writers.values()]
    with (folder / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    index = folder / "index.html"
    index.write_text(_page(folder, jobs, rows, pages), encoding="utf-8")
    return [index, *pages]


def loss_curve(run: Path) -> tuple[list[float], list[float]]:
    """Returns the steps and training losses of a run's ``metrics.csv``; both empty when it has none."""
    path = run / "metrics.csv"
    if not path.is_file():
        return [], []
    with path.open(newline="", encoding="utf-8") as file:
        points = [(row["step"], row["loss"]) for row in csv.DictReader(file) if row.get("loss")]
    return [float(step) for step, _ in points], [float(loss) for _, loss in points]


def _curves_svg(curves: Mapping[str, tuple[list[float], list[float]]]) -> str:
    """Draws all loss curves into one picture."""
    from matplotlib.figure import Figure  # seconds to import, and only a sweep needs it

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for label, (steps, losses) in curves.items():
        axes.plot(steps, losses, label=label, linewidth=1.2)
    axes.set(xlabel="step", ylabel="training loss")
    axes.grid(alpha=0.3)
    axes.legend()
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]


def _page(folder: Path, jobs: Sequence[Job], rows: Sequence[dict[str, str]], pages: Sequence[Path]) -> str:
    varied = list(rows[0])[1 : list(rows[0]).index("outcome")]
    labels = [" ".join(f"{key}={row[key]}" for key in varied) or f"job {row['job']}" for row in rows]
    curves = {
        label: loss_curve(job.result.dir) if job.result else ([], []) for label, job in zip(labels, jobs, strict=True)
    }
    drawn = {label: curve for label, curve in curves.items() if curve[0]}
    absent = ", ".join(label for label in curves if label not in drawn)
    note = f"<p>No loss curve ({MISSING}): {escape(absent)}.</p>" if absent else ""
    names = ["summary.csv", *(page.name for page in pages)]
    links = ", ".join(f'<a href="{escape(name)}">{escape(name)}</a>' for name in names)
    seeds = over_seeds(jobs)
    spread = f"<h2>Over seeds</h2>\n{_html_table(folder, seeds)}" if seeds else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>arcforge sweep</title>
<style>body{{font:15px system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}}
table{{border-collapse:collapse;display:block;overflow-x:auto}}
td,th{{padding:.3rem .7rem;border-bottom:1px solid #8884;text-align:left;font-variant-numeric:tabular-nums}}
svg{{max-width:100%;height:auto}}</style></head><body>
<h1>Sweep, jobs: {len(jobs)}</h1>
<p>{links}</p>
{_html_table(folder, rows)}
{spread}
<h2>Training loss</h2>
{_curves_svg(drawn) if drawn else ""}
{note}
</body></html>
"""


def _html_table(folder: Path, rows: Sequence[dict[str, str]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "\n".join(
        f"<tr>{''.join(_cell(folder, name, row.get(name, MISSING)) for name in names)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _cell(folder: Path, name: str, text: str) -> str:
    report = Path(text) / "report.html"
    if name == "folder" and report.is_file():
        return f'<td><a href="{escape(os.path.relpath(report, folder))}">{escape(text)}</a></td>'
    return f"<td>{escape(text)}</td>"
