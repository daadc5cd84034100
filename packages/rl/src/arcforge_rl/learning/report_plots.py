"""The curves of a run's report."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from arcforge_core.train.report_plots import SERIES, chart_svg, draw_curve, log_scale
from arcforge_rl.learning.dashboard import DROPPED, harmless
from arcforge_rl.learning.report_data import RlRun
from arcforge_rl.rollouts.clock import PHASES

DASHED = (0, (4, 2))
MOST_LABEL = 24
LEAST_SHARE = 0.01
"""Up to which a chart of shares goes at least."""
LEGEND_WIDTH, LEGEND_LINE = 68, 7
"""Characters that a row of a legend has room for, and those that a curve's line takes up."""


@dataclass(frozen=True)
class Chart:
    """One chart of the report.

    Attributes:
        name: unique in the page.
        title: what it shows.
        note: how to read it.
        draw: draws on the axes; returns what is missing, in words, where there is nothing to draw.
        figure: whose warnings are marked.
    """

    name: str
    title: str
    note: str
    draw: Callable[[Axes, RlRun], str]
    figure: str = ""

    def svg(self, run: RlRun) -> tuple[str, str]:
        """Returns the chart as ``<svg>``, or nothing and what is missing."""
        gap = ""

        def draw(axes: Axes) -> None:
            nonlocal gap
            gap = self.draw(axes, run)
            for step in {step for step, figure, _ in run.warnings if self.figure and figure == self.figure}:
                axes.axvline(step, color=SERIES[1], linewidth=1.0, linestyle=DASHED)

        with warnings.catch_warnings():  # the browser has fonts for what matplotlib's lacks: text stays text
            warnings.filterwarnings("ignore", message="Glyph")
            svg = chart_svg(self.name, self.title, draw)
        return ("", gap) if gap else (svg, "")


def columns(names: dict[str, str], ylabel: str, share: bool = False, log: bool = False) -> Callable[[Axes, RlRun], str]:
    """Returns what draws columns of the metrics over the steps.

    Args:
        names: column -> its label.
        ylabel: of the vertical axis.
        share: in percent.
        log: logarithmic, where there is anything above 0.
    """

    def draw(axes: Axes, run: RlRun) -> str:
        there = {name: label for name, label in names.items() if run.has("step", name)}
        if not there:
            return f"{next(iter(names))} in metrics.csv"
        for number, (name, label) in enumerate(there.items()):
            values = run.metrics[name]
            color = SERIES[number % len(SERIES)]
            draw_curve(axes, run.metrics["step"], np.where(values > 0, values, np.nan) if log else values, color, label)
        if log and any((run.metrics[name] > 0).any() for name in there):
            log_scale(axes) if len(there) == 1 else axes.set_yscale("log")
        if share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            most = max(LEAST_SHARE, *(np.nanmax(run.metrics[name]) for name in there))
            axes.set_ylim(-0.03 * most, 1.05 * most)  # from 0, or rounding errors of what is always 1 fill a chart
        axes.set_ylabel(ylabel)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if len(there) > 1:
            legend_above(axes)
        return ""

    return draw


def heldout(over: str) -> Callable[[Axes, RlRun], str]:
    """Returns what draws pass@1 of each domain, and the largest pass@k dashed, over ``step`` or ``seconds``."""

    def draw(axes: Axes, run: RlRun) -> str:
        shown = run.domains[-len(SERIES) :]
        if not shown:
            return "pass@1 in evaluations.csv"
        for number, domain in enumerate(shown):
            table, color = run.evaluations[domain], SERIES[number]
            ks = sorted((name for name in table if name.startswith("pass@")), key=lambda name: int(name[5:]))
            at = table[over] / (60.0 if over == "seconds" else 1.0)
            for name, style in {ks[-1]: DASHED, ks[0]: "-"}.items():  # the same where there is one try
                label = plain(domain) if name == ks[0] else None
                axes.plot(at, table[name], color=color, linestyle=style, linewidth=1.5, label=label, marker="o",
                          markersize=3)  # fmt: skip
        xlabel = "training time (minutes)" if over == "seconds" else "step"
        axes.set(xlabel=xlabel, ylabel=ks[0] if len(ks) == 1 else f"{ks[0]}, dashed {ks[-1]}")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(bottom=0)
        legend_above(axes)
        return ""

    return draw


def rewards(axes: Axes, run: RlRun) -> str:
    """The reward, and those that it is made of where they are not the same."""
    parts = [name for name in run.metrics if name.startswith("reward_") and run.has(name)]
    differ = [name for name in parts if not np.array_equal(run.metrics[name], run.metrics["reward"], equal_nan=True)]
    named = {"reward": "reward", **{name: plain(name.removeprefix("reward_")) for name in differ}}
    return columns(named, "mean over all rollouts")(axes, run)


def phases(axes: Axes, run: RlRun) -> str:
    """Seconds of each phase, one on top of the other."""
    names = [f"seconds_{phase}" for phase in PHASES]
    if not run.has("step", *names):
        return f"{names[0]} in metrics.csv"
    labels = [phase.replace("handover", "hand-over") for phase in PHASES]
    stacked = [np.nan_to_num(run.metrics[name]) for name in names]
    axes.stackplot(run.metrics["step"], *stacked, labels=labels, colors=SERIES[: len(names)], alpha=0.75)
    axes.set(xlabel="step", ylabel="seconds")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    legend_above(axes)
    return ""


def legend_above(axes: Axes) -> None:
    """Names the curves where they cannot cross their names, in as many columns as there is room for."""
    longest = max(len(label) for label in axes.get_legend_handles_labels()[1])
    columns = max(1, LEGEND_WIDTH // (longest + LEGEND_LINE))
    axes.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderpad=0.0, columnspacing=1.2, handlelength=1.4
    )


def plain(label: str) -> str:
    """Returns a short label in which nothing is read as mathematics, and nothing is a control character."""
    words = " ".join(label.split())
    return harmless(words if len(words) <= MOST_LABEL else f"{words[: MOST_LABEL - 1]}…").replace("$", r"\$")


BELOW_ABOVE = {"masked_low": "masked below", "masked_high": "masked above"}
CLIPS = {"clipped_low": "clipped below", "clipped_high": "clipped above"}
CHARTS = (
    Chart("heldout-steps", "Held-out tasks, over steps", "pass@1 of each domain; dashed: the largest k.",
          heldout("step")),
    Chart("heldout-time", "Held-out tasks, over time", "Evaluations do not count as training time.",
          heldout("seconds")),
    Chart("reward", "Reward", "Of the training tasks, groups that teach nothing included: not comparable between "
          "curricula.", rewards),
    Chart("entropy", "Entropy", "Of the distributions that tokens were sampled from.",
          columns({"entropy": "entropy"}, "nats per token"), "entropy"),
    Chart("length", "Length", "Sampled tokens of a rollout.", columns({"length": "length"}, "tokens")),
    Chart("truncated", "Cut off", "Rollouts whose last reply ended at the limit.",
          columns({"truncated": "truncated"}, "of the rollouts", share=True)),
    Chart("gap", "Log-prob gap", "Absolute difference between trainer and engine for the tokens of a step.",
          columns({"logprob_gap": "mean", "logprob_gap_max": "largest"}, "nats (log)", log=True), "logprob_gap"),
    Chart("masked", "Masked and clipped", "Tokens outside the correction's bounds, and outside the loss's clip.",
          columns(BELOW_ABOVE | CLIPS, "of the tokens", share=True), "masked"),
    Chart("effective", "Effective samples", "(sum of factors)² / sum of their squares, over the number of tokens.",
          columns({"effective_samples": "effective samples"}, "of the tokens", share=True)),
    Chart("grad-norm", "Gradient norm", "Before clipping.",
          columns({"grad_norm": "gradient norm"}, "gradient norm (log)", log=True)),
    Chart("groups", "Groups", "Learnt from, and left out by reason; rollouts where nothing was sampled.",
          columns({"groups": "learnt from", **{name: name.replace("_", " ") for name in DROPPED}}, "groups")),
    Chart("phases", "Where the time goes", "Of each step; tools count as sampling.", phases),
)  # fmt: skip


def curves(run: RlRun) -> list[tuple[Chart, str, str]]:
    """Returns each chart with its ``<svg>`` or what is missing."""
    return [(chart, *chart.svg(run)) for chart in CHARTS]
