"""Writes ``report.html`` of a reward model's training, from the run's files only."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from arcforge_core.report.charts import DASHED, SERIES, Chart, chart_cards
from arcforge_core.report.files import METRICS
from arcforge_core.report.html import card, count, decimals, duration, missing, number, percent, table
from arcforge_core.report.page import Page, Section, run_page
from arcforge_core.train.report.data import FILES, Run, read_run

EVALUATIONS, CALIBRATION = "eval.csv", "calibration.json"
HOLDS = {
    **{name: FILES[name] for name in ("config.yaml", "versions.json", "metrics.csv", "summary.json")},
    EVALUATIONS: "held-out pairs",
    CALIBRATION: "confidence and accuracy of held-out pairs",
}


def write_report(run_dir: Path) -> Path:
    """Writes and returns ``run_dir/report.html``; any file of the run may be missing or damaged."""
    run = read_run(run_dir)
    return page_of(run, calibration_of(run_dir)).write(run_dir / "report.html")


def calibration_of(run_dir: Path) -> list[tuple[int, float, float]]:
    """Returns pairs, confidence and accuracy of each bin; none where the file is missing or damaged."""
    try:
        bins = json.loads((run_dir / CALIBRATION).read_text(encoding="utf-8"))["bins"]
        return [(int(pairs), float(confidence), float(accuracy)) for pairs, confidence, accuracy in bins]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def page_of(run: Run, bins: list[tuple[int, float, float]]) -> Page:
    """Returns the page of a run."""
    subtitle = (
        f"{number(run.figure('training_pairs'), count)} pairs · {number(run.figure('tokens'), count)} tokens in "
        f"{number(run.figure('seconds'), duration)}"
    )
    headline = card(
        "Held-out pairs",
        f'<p class="value">{number(run.figure("accuracy"), percent)} <small>ranked as labelled</small></p><dl>'
        + "".join(
            f"<dt>{label}</dt><dd>{number(run.figure(name), decimals)}</dd>"
            for name, label in (
                ("loss", "loss in nats"),
                ("calibration_error", "calibration error"),
                ("length_correlation", "correlation with length"),
                ("score_mean", "mean score"),
                ("score_spread", "spread of differences"),
            )
        )
        + "</dl>",
    )
    charts = [
        Chart("loss", "Loss", "Bradley-Terry loss of the steps, and of held-out pairs.", _draw("loss")),
        Chart("accuracy", "Accuracy", "Share of pairs whose chosen reply scores higher.", _draw("accuracy")),
        Chart("calibration", "Calibration", "Accuracy of the pairs by confidence; dashed: equal.", _calibration(bins)),
    ]
    return run_page(
        run,
        "reward model",
        subtitle,
        [
            Section("", headline, headline=True),
            Section("Curves", chart_cards(charts, run)),
            Section("Calibration", _bins(bins)),
            Section("Left out", _left_out(run.summary)),
        ],
        HOLDS,
        run.problems,
    )


def _draw(name: str) -> Any:
    def draw(axes: Axes, run: Run) -> str:
        if not run.has("step", name, file=METRICS):
            return f"{name} in {METRICS}"
        axes.plot(run.metrics["step"], run.metrics[name], color=SERIES[0], linewidth=1.2, label="training")
        if run.has("step", name, file=EVALUATIONS):
            axes.plot(run.evaluation["step"], run.evaluation[name], color=SERIES[1], marker="o", label="held-out")
        axes.set(xlabel="step", ylabel=name)
        return ""

    return draw


def _calibration(bins: list[tuple[int, float, float]]) -> Any:
    def draw(axes: Axes, run: Run) -> str:
        if not bins:
            return f"bins in {CALIBRATION}"
        axes.plot([0.5, 1.0], [0.5, 1.0], color=SERIES[1], linestyle=DASHED, linewidth=1.0)
        axes.plot([one[1] for one in bins], [one[2] for one in bins], color=SERIES[0], marker="o")
        axes.set(xlabel="confidence", ylabel="accuracy")
        return ""

    return draw


def _bins(bins: list[tuple[int, float, float]]) -> str:
    rows = [[f"{pairs:,}", f"{confidence:.3f}", f"{accuracy:.3f}"] for pairs, confidence, accuracy in bins]
    return card("", table(["pairs", "confidence", "accuracy"], rows) if rows else f"<p>{missing(CALIBRATION)}</p>")


def _left_out(summary: dict[str, Any]) -> str:
    prefix = "left out: "
    found = [(name.removeprefix(prefix), value) for name, value in summary.items() if name.startswith(prefix)]
    rows = [[escape(reason), escape(str(pairs))] for reason, pairs in found]
    return card("", table(["reason", "records"], rows) if rows else "<p>No record was left out.</p>")
