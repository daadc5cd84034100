"""The files of a sweep: ``summary.csv`` and a page that compares its jobs.

Both are rewritten after every job, so a stopped sweep keeps the figures of the jobs that ran. Curves are read from the
files of each run; absent ones are called missing.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from matplotlib.axes import Axes

from arcforge_core.config.sweep import MISSING, SweepJob, over_seeds, table
from arcforge_core.report.charts import chart_svg, draw_curve
from arcforge_core.report.files import METRICS, Columns, FileReader, has_numbers, read_columns
from arcforge_core.report.html import card
from arcforge_core.report.html import table as html_table
from arcforge_core.report.page import Page, Section


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
        title=f"Sweep, jobs: {len(jobs)}",
        subtitle=", ".join(f'<a href="{escape(name)}">{escape(name)}</a>' for name in names),
        sections=[
            Section("Jobs", card("", _table(folder, rows))),
            *([Section("Over seeds", card("", _table(folder, seeds)))] if seeds else []),
            Section("Training loss", _curves(jobs, rows)),
        ],
    )
    return [page.write(folder / "index.html"), *pages]


def _curves(jobs: Sequence[SweepJob], rows: Sequence[Mapping[str, str]]) -> str:
    """Returns one chart with all loss curves, and the names of the jobs that have none."""
    varied = list(rows[0])[1 : list(rows[0]).index("outcome")]
    labels = [" ".join(f"{key}={row[key]}" for key in varied) or f"job {row['job']}" for row in rows]
    drawn: dict[str, Columns] = {}
    for label, job in zip(labels, jobs, strict=True):
        metrics = FileReader(job.result.dir).read(METRICS, read_columns, Columns()) if job.result else Columns()
        if has_numbers(metrics, "step", "loss"):
            drawn[label] = metrics

    def draw(axes: Axes) -> None:
        for number, (label, metrics) in enumerate(drawn.items()):
            draw_curve(axes, metrics["step"], metrics["loss"], f"C{number}", label, smooth=False)
        axes.set_ylabel("training loss")
        axes.legend()

    absent = ", ".join(label for label in labels if label not in drawn)
    note = f"<p>No loss curve ({MISSING}): {escape(absent)}.</p>" if absent else ""
    return (card("", chart_svg("loss", "Training loss", draw, 9, 4.5)) if drawn else "") + note


def _table(folder: Path, rows: Sequence[Mapping[str, str]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(folder, name, row.get(name, MISSING)) for name in names] for row in rows]
    return html_table([escape(name) for name in names], cells)


def _cell(folder: Path, name: str, text: str) -> str:
    report = Path(text) / "report.html"
    if name == "folder" and report.is_file():
        return f'<a href="{escape(os.path.relpath(report, folder))}">{escape(text)}</a>'
    return escape(text)
