"""The curves of a run's report."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from arcforge_core.report.charts import DASHED, SERIES, Chart, draw_curve, draw_stack, legend_above, log_scale
from arcforge_rl.rollouts.clock import PHASES
from arcforge_rl.trainer.dashboard import DROPPED, harmless
from arcforge_rl.trainer.report.data import RlRun

MOST_LABEL = 24
LEAST_SHARE = 0.01
"""Minimum upper limit of the axis of a chart of shares."""


def warned(figure: str) -> Callable[[RlRun], set[float]]:
    """Returns a function that finds the steps with a warning about a figure."""
    return lambda run: {float(step) for step, name, _ in run.warnings if name == figure}


def columns(names: dict[str, str], ylabel: str, share: bool = False, log: bool = False) -> Callable[[Axes, RlRun], str]:
    """Returns a function that draws columns of the metrics over the steps.

    Args:
        names: column -> label.
        ylabel: label of the vertical axis.
        share: whether values are shown in percent.
        log: whether the axis is logarithmic, if any value is above 0.
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
            axes.set_ylim(-0.03 * most, 1.05 * most)  # from 0, or rounding errors of a constant 1 fill the chart
        axes.set_ylabel(ylabel)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if len(there) > 1:
            legend_above(axes)
        return ""

    return draw


def heldout(over: str) -> Callable[[Axes, RlRun], str]:
    """Returns a function that draws pass@1 per domain, and the largest pass@k dashed, over ``step`` or ``seconds``."""

    def draw(axes: Axes, run: RlRun) -> str:
        shown = run.domains[-len(SERIES) :]
        if not shown:
            return "pass@1 in evaluations.csv"
        for number, domain in enumerate(shown):
            table, color = run.evaluations[domain], SERIES[number]
            ks = sorted((name for name in table if name.startswith("pass@")), key=lambda name: int(name[5:]))
            at = table[over] / (60.0 if over == "seconds" else 1.0)
            for name, style in {ks[-1]: DASHED, ks[0]: "-"}.items():  # the same if there is one rollout per task
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
    """Draws the reward, and its components if they differ from it."""
    parts = [name for name in run.metrics if name.startswith("reward_") and run.has(name)]
    differ = [name for name in parts if not np.array_equal(run.metrics[name], run.metrics["reward"], equal_nan=True)]
    named = {"reward": "reward", **{name: plain(name.removeprefix("reward_")) for name in differ}}
    return columns(named, "mean over all rollouts")(axes, run)


def phases(axes: Axes, run: RlRun) -> str:
    """Draws the seconds of each phase, stacked."""
    known = [phase for phase in PHASES if run.has("step", f"seconds_{phase}")]
    if not known:
        return "seconds_sampling in metrics.csv"
    seconds = {phase.replace("handover", "hand-over"): run.metrics[f"seconds_{phase}"] for phase in known}
    draw_stack(axes, run.metrics["step"], seconds)
    axes.set(xlabel="step", ylabel="seconds")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    legend_above(axes)
    return ""


def plain(label: str) -> str:
    """Returns a short label without mathematics markup and control characters."""
    words = " ".join(label.split())
    return harmless(words if len(words) <= MOST_LABEL else f"{words[: MOST_LABEL - 1]}…").replace("$", r"\$")


BELOW_ABOVE = {"masked_low": "masked below", "masked_high": "masked above"}
CLIPS = {"clipped_low": "clipped below", "clipped_high": "clipped above"}
CHARTS = (
    Chart("heldout-steps", "Held-out tasks, over steps", "pass@1 of each domain; dashed: the largest k.",
          heldout("step")),
    Chart("heldout-time", "Held-out tasks, over time", "Evaluations do not count as training time.",
          heldout("seconds")),
    Chart("reward", "Reward", "Of the training tasks, including dropped groups: not comparable between "
          "curricula.", rewards),
    Chart("entropy", "Entropy", "Of the distributions of sampled tokens.",
          columns({"entropy": "entropy"}, "nats per token"), warned("entropy")),
    Chart("length", "Length", "Sampled tokens of a rollout.", columns({"length": "length"}, "tokens")),
    Chart("truncated", "Cut off", "Rollouts whose last reply reached the token limit.",
          columns({"truncated": "truncated"}, "of the rollouts", share=True)),
    Chart("gap", "Log-prob gap", "Absolute difference between trainer and engine for the tokens of a step.",
          columns({"logprob_gap": "mean", "logprob_gap_max": "largest"}, "nats (log)", log=True),
          warned("logprob_gap")),
    Chart("masked", "Masked and clipped", "Tokens outside the correction's bounds, and outside the loss's clip.",
          columns(BELOW_ABOVE | CLIPS, "of the tokens", share=True), warned("masked")),
    Chart("effective", "Effective samples", "(sum of factors)² / sum of their squares, over the number of tokens.",
          columns({"effective_samples": "effective samples"}, "of the tokens", share=True)),
    Chart("grad-norm", "Gradient norm", "Before clipping.",
          columns({"grad_norm": "gradient norm"}, "gradient norm (log)", log=True)),
    Chart("groups", "Groups", "Trained on, and dropped by reason; rollouts without a sampled token.",
          columns({"groups": "trained on", **{name: name.replace("_", " ") for name in DROPPED}}, "groups")),
    Chart("phases", "Where the time goes", "Of each step; tools count as sampling.", phases),
)  # fmt: skip


def lost(axes: Axes, run: RlRun) -> str:
    """Draws failed rollouts, restarts and dropped groups by kind, those that occurred."""
    begun = ("failed_", "dropped_", "retried", "stale_", "kept_stale")
    names = [name for name in run.metrics if name.startswith(begun) and np.nansum(run.metrics[name]) > 0]
    if not names:
        return "failed_* or dropped_* in metrics.csv: nothing failed"
    return columns({name: plain(name.replace("_", " ")) for name in names[: len(SERIES)]}, "per step")(axes, run)


def histogram(axes: Axes, run: RlRun) -> str:
    """Draws the share of rollouts by staleness, stacked."""
    names = [name for name in (f"staleness_take_{n}" for n in range(9)) if run.has("step", name)]
    if not names:
        return "staleness_take_0 in metrics.csv"
    shares = [np.nan_to_num(run.metrics[name]) for name in names]
    labels = [name.rpartition("_")[2] for name in names]
    axes.stackplot(run.metrics["step"], *shares, labels=[*labels[:-1], f"{labels[-1]}+"], alpha=0.75)
    axes.set(xlabel="step", ylabel="of the rollouts")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    legend_above(axes)
    return ""


STALENESS = {
    "staleness_take_mean": "trained, mean", "staleness_take_max": "trained, most",
    "staleness_put_mean": "complete, mean", "staleness_put_max": "complete, most",
}  # fmt: skip
ASYNCHRONOUS = (
    Chart("staleness", "Staleness", "Steps between the oldest token of a rollout and its training; and when its group "
          "was complete.", columns(STALENESS, "steps")),
    Chart("staleness-shares", "Staleness, shares", "Rollouts trained on by the staleness of their oldest token.",
          histogram),
    Chart("idle", "Idle", "The trainer waits for a batch; the engine has no request.",
          columns({"trainer_idle": "trainer", "engine_idle": "engine"}, "of the time", share=True)),
    Chart("drift", "Drift", "Absolute difference between trainer and recorded log-probs for tokens of older weights.",
          columns({"logprob_drift": "mean"}, "nats (log)", log=True)),
    Chart("use", "Use of the engine", "Prompt tokens found in the prefix cache; tokens trained on per token sampled, "
          "since the start.", columns({"prefix_hits": "prefix hits", "trained_per_sampled": "trained"}, "share",
                                      share=True)),
    Chart("latency", "Rollout latency", "From start to end, tools included.",
          columns({"rollout_p50": "median", "rollout_p99": "99th percentile"}, "seconds")),
    Chart("lost", "Failed and dropped", "Failed attempts and restarts, and groups left out.", lost),
)  # fmt: skip
"""Of runs that sample while they train."""
