"""``index.html`` of a pipeline's run: its stages with their figures, and the loss over the tokens of all of them.

Everything is read from the runs' files; what is not there is called missing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from arcforge_core.pipeline.state import FILE, PipelineState, StageRecord
from arcforge_core.train.report_data import read_run
from arcforge_core.train.report_html import STYLE, count, duration, missing
from arcforge_core.train.report_plots import HEIGHT, MUTED, SERIES, WIDTH, chart_style, inline_svg
from arcforge_core.train.rundir import write_text

PAGE = "index.html"
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
HEAD = (
    "stage", "status", "attention", "context", "positions", "rope theta", "learning rate", "tokens", "training loss",
    "held-out bits per byte", "tokens/s", "time",
)  # fmt: skip
NOTE = (
    "Held-out text is read in rows of a stage's context and tokens see nothing of other rows, so bits per byte fall "
    "with longer contexts too. The loss of a stage is the mean of its last row of metrics."
)


def write_page(folder: Path, state: PipelineState) -> Path:
    """Writes and returns the page."""
    cells = ("".join(f"<td>{cell}</td>" for cell in _row(folder, record)) for record in state.stages)
    rows = "".join(f"<tr>{line}</tr>" for line in cells)
    curves = loss_curves([folder / record.folder for record in state.stages])
    drawn = {record.name: curve for record, curve in zip(state.stages, curves, strict=True) if curve[0].size}
    plot = _plot(drawn) if drawn else f"<p>{missing('metrics.csv')}</p>"
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    style = f"<style>{STYLE.read_text(encoding='utf-8')}</style>"
    title, status = escape(state.name), escape(state.status)
    write_text(
        folder / PAGE,
        f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
{style}
<style>td {{ white-space: nowrap; }} td:nth-child(2) {{ white-space: normal; overflow-wrap: normal; }}</style>
</head><body>
<header><p class="eyebrow">arcforge pipeline · {escape(folder.name)}</p>
<h1>{title} <span class="badge {"finished" if status == "finished" else ""}">{status}</span></h1></header>
<main><h2>Stages</h2>
<div class="card"><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>
<p class="note">{NOTE}</p></div>
<h2>Training loss over all stages</h2><div class="card">{plot}</div></main>
<footer><a href="{FILE}">{FILE}</a></footer>
</body></html>
""",
    )
    return folder / PAGE


def _row(folder: Path, record: StageRecord) -> list[str]:
    """Returns the cells of a stage, as HTML."""
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


def _figure(record: StageRecord, name: str, form: Any) -> str:
    value = record.figures.get(name)
    return escape(form(value)) if isinstance(value, int | float) else missing()


def loss_curves(runs: Sequence[Path]) -> list[Curve]:
    """Returns for each run the tokens trained on by all runs up to then, and the losses; empty where there are none."""
    before, curves = 0.0, []
    for run in runs:
        metrics = read_run(run).metrics
        tokens, losses = (metrics.get(name, np.empty(0)) for name in ("tokens", "loss"))
        known = np.isfinite(tokens) & np.isfinite(losses) if tokens.size == losses.size else np.empty(0, dtype=bool)
        curves.append((before + tokens[known], losses[known]) if known.size else (np.empty(0), np.empty(0)))
        before += tokens[known].max(initial=0.0) if known.size else 0.0
    return curves


def _plot(curves: dict[str, Curve]) -> str:
    """Draws the curves one after another, each in a colour of its own, with a line where a stage ends."""
    with chart_style("pipeline"):
        figure = Figure(figsize=(2 * WIDTH, HEIGHT * 1.3), layout="constrained")
        axes = figure.subplots()
        for number, (name, (tokens, losses)) in enumerate(curves.items()):
            marker = "o" if tokens.size == 1 else None
            axes.plot(tokens, losses, color=SERIES[number % len(SERIES)], label=name, linewidth=1.4, marker=marker)
        for tokens, _ in list(curves.values())[:-1]:
            axes.axvline(tokens[-1], color=MUTED, linewidth=0.8, linestyle=":")
        axes.set(xlabel="training tokens", ylabel="nats per token")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.legend()
        return inline_svg(figure, "pipeline", "Training loss over all stages")
