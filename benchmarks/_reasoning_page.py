"""The page of `reasoning_rl.py`: held-out shares of all methods, and how they came about."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from arcforge_core.report.charts import SERIES, chart_style, chart_svg
from arcforge_core.report.html import card, table
from arcforge_core.report.page import Page, Section

Runs = dict[str, list[dict[str, Any]]]
CHARTS = {
    "learning": ("A right engine", ("icepop", "grpo")),
    "perturbed": ("An engine that misreports its log-probabilities", ("noisy_icepop", "noisy_grpo")),
    "sparse": ("Sparse attention, and a selection that is not stable", ("dsa", "unstable_topk")),
}


def write_page(folder: Path, report: dict[str, Any], told: str) -> None:
    """Writes ``page.html`` and ``page.png``.

    Args:
        folder: where they go.
        report: of the benchmark; methods that have not run are left out.
        told: what was compared, as text.
    """
    runs: Runs = report["runs"]
    shown = {name: of for name, of in CHARTS.items() if any(method in runs for method in of[1])}
    charts = "".join(card(title, chart_svg(name, title, curves(runs, names))) for name, (title, names) in shown.items())
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    Page(
        kind="benchmark",
        title="Reasoning by reinforcement learning",
        sections=[
            Section("", card("", f"<p>{escape(told)}</p>")),
            Section("Held-out tasks", card("", results(runs))),
            Section("Curves", charts),
        ],
        footer=escape(machine),
    ).write(folder / "page.html")
    with chart_style("page"):
        figure = Figure(figsize=(5.2 * len(shown), 3.4), layout="constrained")
        for axes, (title, names) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.values(), strict=True):
            curves(runs, names)(axes)
            axes.set_title(title, fontsize=10)
        figure.savefig(folder / "page.png", dpi=150)


def results(runs: Runs) -> str:
    """Returns the table of all methods."""
    rows = []
    for name, of in runs.items():
        ends = [run["heldout"] for run in of]
        below = [run["below_best"] for run in of if "below_best" in run]
        rows.append(
            [
                escape(name),
                f"{len(of)}",
                f"{of[0]['before']:.1%}",
                f"{statistics.median(ends):.1%}",
                f"{min(ends):.1%} to {max(ends):.1%}",
                f"{100 * (min(ends) - of[0]['before']):+.1f}",
                f"{100 * max(below):.1f}" if below else "",
                f"{statistics.median(run['seconds'] for run in of):,.0f}",
            ]
        )
    head = ["method", "seeds", "before", "after, median", "range", "least gain, points", "most under its best", "s"]
    return table(head, rows)


def curves(runs: Runs, names: tuple[str, ...]) -> Callable[[Axes], None]:
    """Returns what draws pass@1 over the minutes, a line for each seed."""

    def draw(axes: Axes) -> None:
        for number, name in enumerate(name for name in names if name in runs):
            for seed, run in enumerate(runs[name]):
                minutes = [second / 60 for second in run["seconds_at"]]
                label = name.replace("_", " ") if seed == 0 else None
                axes.plot(minutes, run["curve"], color=SERIES[number], linewidth=1.2, marker="o", markersize=2.5,
                          label=label)  # fmt: skip
        axes.set(xlabel="training time (minutes)", ylabel="held-out pass@1", ylim=(0, 1))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(loc="lower right", frameon=False)

    return draw
