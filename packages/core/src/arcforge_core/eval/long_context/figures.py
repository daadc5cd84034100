"""Shows a report as a table, as heat maps of depth by length (palette viridis), and as a page with both."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from arcforge_core.eval.long_context.report import FILE, LongContextReport
from arcforge_core.report.charts import chart_style, inline_svg
from arcforge_core.report.html import card
from arcforge_core.report.html import table as html_table
from arcforge_core.report.page import Page, Section

COLUMNS = 4
MISSING = "missing"


def headline(report: LongContextReport) -> str:
    """Returns a one-line description of the figures."""
    settings = report.settings
    return f"{settings['subject']}: % of the answers given; lengths in {settings['lengths_in']}"


def table(report: LongContextReport) -> Table:
    """Returns the scores for a terminal: a row per task, a column per length."""
    found = Table("task")
    for length in report.lengths:
        found.add_column(f"{length:,}", justify="right")
    for row in _rows(report):
        found.add_row(*row)
    return found


def write_figures(report: LongContextReport, folder: Path) -> Path:
    """Writes ``long_context.png``, ``.svg`` and ``.html`` beside the report and returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    with chart_style("long_context"):
        figure = heat_maps(report)
        figure.savefig(folder / "long_context.png", dpi=160, facecolor="white")
        figure.savefig(folder / "long_context.svg", facecolor="white", metadata={"Date": None})
        maps = inline_svg(figure, "Scores by depth and length")
    return _page(report, maps).write(folder / "long_context.html")


def heat_maps(report: LongContextReport) -> Figure:
    """Draws one map per task: a column per length and a row per depth, with the beginning of the context on top."""
    rows = -(-len(report.tasks) // COLUMNS)
    columns = min(COLUMNS, len(report.tasks))
    width = max(2.2, 0.55 * len(report.lengths) + 1)
    figure = Figure(figsize=(width * columns + 0.8, 2.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(report.tasks) :]:
        axes.remove()
    for axes, task in zip(grid.flat, report.tasks, strict=False):
        image = _heat_map(axes, report, task)
    bar: Any = figure.colorbar(image, ax=grid.ravel().tolist(), label="score", fraction=0.02, pad=0.01)
    bar.outline.set_visible(False)
    return figure


def _heat_map(axes: Any, report: LongContextReport, task: str) -> Any:
    cells = {(cell.depth, cell.length): cell.score for cell in report.cells if cell.task == task}
    depths = sorted({depth for depth, _ in cells}, key=lambda depth: depth or 0.0)
    score_DL = np.array([[cells.get((depth, length), np.nan) for length in report.lengths] for depth in depths])
    image = axes.imshow(score_DL, aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    for row, column in np.ndindex(score_DL.shape):
        value = score_DL[row, column]
        if np.isfinite(value):
            color = "black" if value > 0.6 else "white"
            axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", color=color, fontsize=7)
    axes.grid(False)
    axes.set_title(task)
    axes.set_xticks(range(len(report.lengths)), [_short(length) for length in report.lengths])
    axes.set_yticks(range(len(depths)), ["all" if depth is None else f"{depth:g}" for depth in depths])
    axes.set_xlabel("length")
    axes.set_ylabel("depth")
    for side in axes.spines.values():
        side.set_visible(False)
    return image


def _short(length: int) -> str:
    return f"{length // 1024}K" if length >= 1024 and not length % 1024 else str(length)


def _rows(report: LongContextReport) -> list[list[str]]:
    """Returns the scores of the tasks by length in percent, then their means."""
    rows = [[task, *(_percent(report.score(task, length)) for length in report.lengths)] for task in report.tasks]
    return [*rows, ["all tasks", *map(_percent, report.by_length().values())]]


def _percent(score: float | None) -> str:
    return MISSING if score is None else f"{100 * score:.1f}"


def _page(report: LongContextReport, maps: str) -> Page:
    head = ["task", *(f"{length:,}" for length in report.lengths)]
    settings = "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in report.settings.items())
    return Page(
        kind="evaluation",
        title="Long context",
        subtitle=f"{escape(headline(report))}. "
        "Depth is the share of the context that precedes the answer; 0 is the beginning.",
        sections=[
            Section("Scores", card("", html_table(head, [[escape(cell) for cell in row] for row in _rows(report)]))),
            Section("Depth by length", card("", maps)),
            Section("Settings", card("", f"<dl>{settings}</dl>")),
        ],
        footer=f'<a href="{FILE}">{FILE}</a>',
    )
