"""The files of a sweep: ``summary.csv`` and a page that compares its jobs.

Both are rewritten after every job, so a stopped sweep keeps the figures of the jobs that ran. Curves are read from the
files of each run; absent ones are called missing.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from arcforge_core.config.sweep import MISSING, SweepJob, over_seeds, table
from arcforge_core.report.charts import SERIES, chart_svg, draw_curve, legend_above
from arcforge_core.report.files import METRICS, Columns, FileReader, has_numbers, read_columns
from arcforge_core.report.html import card, count
from arcforge_core.report.html import table as table_html
from arcforge_core.report.page import Page, Section

Row = Mapping[str, str]
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
BETTER: dict[str, Callable[..., Any]] = {"bits_per_byte": min, "pass@1_after": max, "heldout_loss": min, "loss": min}
"""Figures that sweeps are about, the first known one first, and which value of it is best."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
CURVES = ((METRICS, "loss", "Training loss"), ("eval.csv", "bits_per_byte", "Held-out bits per byte"))
"""File, column and title of each chart."""


def write_comparison(folder: Path, jobs: Sequence[SweepJob]) -> list[Path]:
    """Writes ``summary.csv``, ``index.html`` and the pages that jobs bring into `folder`; returns the pages."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = table(jobs)
    writers = {job.result.page.__qualname__: job.result.page for job in jobs if job.result and job.result.page}
    pages = [write(folder, jobs) for write in writers.values()]
    with (folder / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    names = ["summary.csv", *(page.name for page in pages)]
    seeds = over_seeds(jobs)
    page = Page(
        kind="sweep",
        title=_title(rows),
        subtitle=", ".join(f'<a href="{escape(name)}">{escape(name)}</a>' for name in names),
        sections=[
            Section("Jobs", _jobs(folder, rows)),
            *([Section("Over seeds", card("", _seeds(seeds)))] if seeds else []),
            Section("Curves", _curves(jobs, rows)),
        ],
        about=_about(rows),
    )
    return [page.write(folder / "index.html"), *pages]


def _title(rows: Sequence[Row]) -> str:
    varied = list(rows[0])[1 : list(rows[0]).index("outcome")]
    return f"{', '.join(varied) or 'Sweep'}: {len(rows)} jobs"


def _about(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the head of the page: command, and the best job."""
    figure = _headline(rows)
    best = _best(rows, figure)
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    about = {"command": f"<code>{escape(command)}</code>"}
    if best is not None:
        label = _labels(rows)[rows.index(best)]
        about["best"] = f"{escape(label)}: {escape(figure.replace('_', ' '))} {escape(best[figure])}"
    return about


def _headline(rows: Sequence[Row]) -> str:
    """Returns the figure that the sweep is about, the first known one; empty if there is none."""
    return next((name for name in BETTER if any(_value(row, name) is not None for row in rows)), "")


def _headline_of(names: Sequence[str]) -> str:
    return next((name for name in BETTER if name in names), "")


def _short(text: str) -> str:
    """Returns text with its numbers in four digits."""
    return NUMBER.sub(lambda found: _digits(float(found[0])), text)


def _digits(value: float) -> str:
    return count(value) if abs(value) >= 1e4 else f"{value:.4g}"


def _best(rows: Sequence[Row], figure: str) -> Row | None:
    """Returns the row with the best headline figure, if it has at least two to compare."""
    known = [row for row in rows if figure and _value(row, figure) is not None]
    return BETTER[figure](known, key=lambda row: _value(row, figure)) if len(known) > 1 else None


def _value(row: Row, name: str) -> float | None:
    try:
        value = float(row.get(name, MISSING))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _labels(rows: Sequence[Row]) -> list[str]:
    varied = list(rows[0])[1 : list(rows[0]).index("outcome")]
    return [" ".join(f"{key}={row[key]}" for key in varied) or f"job {row['job']}" for row in rows]


def _curves(jobs: Sequence[SweepJob], rows: Sequence[Row]) -> str:
    """Returns charts with the curves of all jobs, and the names of the jobs that have none."""
    labels = _labels(rows)
    charts, absent = [], labels
    for file, column, title in CURVES:
        drawn = {}
        for label, job in zip(labels, jobs, strict=True):
            columns = FileReader(job.result.dir).read(file, read_columns, Columns()) if job.result else Columns()
            if has_numbers(columns, "step", column):
                drawn[label] = columns["step"], columns[column]
        if drawn:
            charts.append(card(title, chart_svg(f"{file}-{column}", title, _drawing(drawn, title))))
        if file == METRICS:
            absent = [label for label in labels if label not in drawn]
    note = f'<p class="note">No loss curve ({MISSING}): {escape(", ".join(absent))}.</p>' if absent else ""
    return (f'<div class="grid">{"".join(charts)}</div>' if charts else "") + note


def _drawing(
    drawn: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]], title: str
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for number, (label, (steps, values)) in enumerate(drawn.items()):
            again, color = divmod(number, len(SERIES))
            label, line = (f"{label} (dashed)", "--") if again % 2 else (label, "-")
            draw_curve(axes, steps, values, SERIES[color], label, smooth=False, linestyle=line)
        axes.set_ylabel(title.lower())
        legend_above(axes)

    return draw


def _jobs(folder: Path, rows: Sequence[Row]) -> str:
    """Returns the table of jobs: their settings and headline figure first; failures with their reasons below."""
    figure = _headline(rows)
    best = _best(rows, figure)
    names = list(dict.fromkeys(name for row in rows for name in row if name != "folder"))
    first = names[: names.index("outcome")]
    names = _ordered(names, first, figure)
    cells = [[_cell(folder, name, row) for name in names] for row in rows]
    if best is not None:
        at = rows.index(best)
        cells[at][names.index(figure)] += ' <span class="ok">best</span>'
    failed = [[escape(row["job"]), escape(row["outcome"])] for row in rows if row["outcome"] != "ok"]
    reasons = card("Failed", table_html(["job", "reason"], failed)) if failed else ""
    shown = table_html([escape(name.replace("_", " ")) for name in names], cells, sortable=True)
    note = '<p class="note">Click on a heading to sort; hover over a number for all its digits.</p>'
    return f'<div class="stack">{card("", shown + note)}{reasons}</div>'


def _cell(folder: Path, name: str, row: Row) -> str:
    text = row.get(name, MISSING)
    if name == "job":
        report = Path(row.get("folder", MISSING)) / "report.html"
        link = f'<a href="{escape(os.path.relpath(report, folder))}">{escape(text)}</a>'
        return link if report.is_file() else escape(text)
    if name == "outcome":
        return '<span class="ok">ok</span>' if text == "ok" else '<span class="failed">failed</span>'
    if text == MISSING and row["outcome"] != "ok":
        return "&ndash;"  # its reason is below
    if text == MISSING:
        return f'<span class="missing">{MISSING}</span>'
    value = _value(row, name)
    if value is None:
        return escape(text)
    shown = _digits(value)
    return f'<span data-value="{escape(text)}" title="{escape(text)}">{shown}</span>'


def _ordered(names: Sequence[str], first: Sequence[str], figure: str) -> list[str]:
    """Returns the names of columns: settings, the headline figure, other known ones, the rest."""
    wanted = [*first, *filter(None, [figure]), *BETTER, *names]
    return [name for name in dict.fromkeys(wanted) if name in names]


def _seeds(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = _ordered(names, names[: names.index("seeds") + 1], _headline_of(names))
    settings = names[: names.index("seeds")]
    cells = [
        [escape(row.get(name, MISSING) if name in settings else _short(row.get(name, MISSING))) for name in names]
        for row in rows
    ]
    return table_html([escape(name.replace("_", " ")) for name in names], cells, sortable=True)
