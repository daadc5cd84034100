"""``index.html`` of a pipeline's run: its stages with their figures, and the loss over the tokens of all of them.

Everything is read from the runs' files; absent values are shown as missing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from arcforge_core.pipeline.state import FILE, PipelineState, StageRecord
from arcforge_core.report.charts import HEIGHT, MUTED, SERIES, WIDTH, chart_svg, legend_above
from arcforge_core.report.files import METRICS, Columns, FileReader, read_columns
from arcforge_core.report.html import card, count, duration, missing, table
from arcforge_core.report.page import Page, Section

PAGE = "index.html"
STYLE = "td { white-space: nowrap; } td:nth-child(2) { white-space: normal; overflow-wrap: normal; }"
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
HEAD = [
    "stage", "status", "attention", "context", "positions", "rope theta", "learning rate", "tokens", "training loss",
    "held-out bits per byte", "tokens/s", "time",
]  # fmt: skip
NOTE = (
    "Held-out text is read in rows of a stage's context and tokens see nothing of other rows, so bits per byte fall "
    "with longer contexts too. The loss of a stage is the mean of its last row of metrics."
)


def write_page(folder: Path, state: PipelineState) -> Path:
    """Writes and returns the page."""
    runs = [record for record in state.stages if record.job == "train"]
    others = [record for record in state.stages if record.job != "train"]
    curves = loss_curves([folder / record.folder for record in runs])
    drawn = {record.name: curve for record, curve in zip(runs, curves, strict=True) if curve[0].size}
    stages = table(HEAD, [_row(folder, record) for record in runs])
    jobs = table(["stage", "status", "job", "figures"], [_job_row(record) for record in others])
    page = Page(
        kind=f"pipeline · {folder.name}",
        title=state.name,
        status=state.status,
        sections=[
            Section("Stages", card("", f'{stages}<p class="note">{NOTE}</p>')),
            *([Section("Other jobs", card("", jobs))] if others else []),
            Section("Training loss over all stages", card("", _plot(drawn) if drawn else f"<p>{missing(METRICS)}</p>")),
        ],
        footer=f'<a href="{FILE}">{FILE}</a>',
        style=STYLE,
    )
    return page.write(folder / PAGE)


def _row(folder: Path, record: StageRecord) -> list[str]:
    """Returns the cells of a training stage, as HTML."""
    config, report = record.config, folder / record.folder / "report.html"
    peak = config["optimizer"]["lr"]
    rates = dict.fromkeys(f"{rate:g}" for rate in (peak, peak * config["schedule"]["final"]))
    name = escape(record.name)
    return [
        f'<a href="{escape(os.path.relpath(report, folder))}">{name}</a>' if report.is_file() else name,
        escape(record.status),
        escape(config["attention"]["name"]),
        f"{config['trainer']['sequence_length']:,}",
        f"{config['model']['max_position_embeddings']:,}",
        f"{config['model']['rope_theta']:,.0f}",
        " → ".join(rates),
        _figure(record, "tokens", count),
        _figure(record, "loss", "{:.3f}".format),
        _figure(record, "bits_per_byte", "{:.3f}".format),
        _figure(record, "tokens_per_s", "{:,.0f}".format),
        _figure(record, "seconds", duration),
    ]


def _job_row(record: StageRecord) -> list[str]:
    """Returns the cells of a stage that is another job, as HTML."""
    return [escape(text) for text in (record.name, record.status, record.job, record.figures_text())]


def _figure(record: StageRecord, name: str, form: Any) -> str:
    value = record.figures.get(name)
    return escape(form(value)) if isinstance(value, int | float) else missing()


def loss_curves(runs: Sequence[Path]) -> list[Curve]:
    """Returns for each run the tokens trained on by all runs up to then, and the losses; empty if there are none."""
    before, curves = 0.0, []
    for run in runs:
        metrics = FileReader(run).read(METRICS, read_columns, Columns())
        tokens, losses = (metrics.get(name, np.empty(0)) for name in ("tokens", "loss"))
        known = np.isfinite(tokens) & np.isfinite(losses) if tokens.size == losses.size else np.empty(0, dtype=bool)
        curves.append((before + tokens[known], losses[known]) if known.size else (np.empty(0), np.empty(0)))
        before += tokens[known].max(initial=0.0) if known.size else 0.0
    return curves


def _plot(curves: dict[str, Curve]) -> str:
    """Draws the curves one after another, each in its own colour, with a line at the end of each stage."""

    def draw(axes: Axes) -> None:
        for number, (name, (tokens, losses)) in enumerate(curves.items()):
            marker = "o" if tokens.size == 1 else None
            axes.plot(tokens, losses, color=SERIES[number % len(SERIES)], label=name, linewidth=1.4, marker=marker)
        for tokens, _ in list(curves.values())[:-1]:
            axes.axvline(tokens[-1], color=MUTED, linewidth=0.8, linestyle=":")
        axes.set(xlabel="training tokens", ylabel="nats per token")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        legend_above(axes)

    return chart_svg("pipeline", "Training loss over all stages", draw, 2 * WIDTH, HEIGHT * 1.3)
