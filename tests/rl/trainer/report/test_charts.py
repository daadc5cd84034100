"""Curves of the report can be read: names beside them, axes that fit what shares can be, lines that mean one thing."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from arcforge_core.report.charts import HEIGHT, WIDTH, chart_style
from arcforge_rl.trainer.report.charts import ASYNCHRONOUS, CHARTS, heldout, plain
from arcforge_rl.trainer.report.data import RlRun
from arcforge_rl.trainer.report.page import charts_of

STEPS = np.arange(1.0, 9.0)
BY_NAME = {chart.name: chart for chart in (*CHARTS, *ASYNCHRONOUS)}


def run_of(ks: tuple[int, ...] = (1,), domains: tuple[str, ...] = ("math",), **metrics: float) -> RlRun:
    """A run of eight steps, each column of whose metrics is this number throughout."""
    columns = {"step": STEPS, **{name: np.full_like(STEPS, value) for name, value in metrics.items()}}
    table = {"step": STEPS, "seconds": 60 * STEPS, **{f"pass@{k}": STEPS / 10 for k in ks}}
    return RlRun(Path("run"), {}, "", {}, {}, columns, dict.fromkeys(domains, table), {}, 1, [], {})


def drawn(name: str, run: RlRun) -> Figure:
    with chart_style(name):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        FigureCanvasAgg(figure)
        assert BY_NAME[name].draw(figure.subplots(), run) == ""
        figure.draw_without_rendering()
    return figure


def test_pass_at_1_is_a_whole_line_also_where_it_is_the_only_one() -> None:
    for ks, styles in (((1,), ["-"]), ((1, 2, 8), ["-", "--"])):
        axes = Figure().subplots()
        assert heldout("step")(axes, run_of(ks)) == ""
        assert sorted(line.get_linestyle() for line in axes.lines) == sorted(styles)
        assert axes.lines[-1].get_label() == "math" and axes.lines[-1].get_linestyle() == "-"
        assert axes.get_ylabel() == ("pass@1" if len(ks) == 1 else "pass@1, dashed pass@8")


def test_long_names_are_cut_and_hold_no_mathematics() -> None:
    assert plain("a" * 30) == "a" * 23 + "…" and plain("a\nb  $x$\x1b") == "a b \\$x\\$" + plain("\x1b")


@pytest.mark.parametrize("value", [0.0, 1.0 - 1e-7, 1.0, 0.3])
def test_charts_of_shares_begin_at_none(value: float) -> None:
    shares = dict.fromkeys(("masked_low", "masked_high", "clipped_low", "effective_samples", "truncated"), value)
    for name in ("masked", "effective", "truncated"):
        (axes,) = drawn(name, run_of(**shares)).axes
        low, high = axes.get_ylim()
        assert -0.05 * high < low < 0 and max(value, 0.01) < high <= 1.1 * max(value, 0.01)


COUNTS = dict.fromkeys(("groups", "all_right", "all_wrong", "all_equal", "nothing_sampled"), 3.0)
SHARES = dict.fromkeys(("masked_low", "masked_high", "clipped_low", "clipped_high"), 0.1)
SECONDS = dict.fromkeys(
    ("seconds_sampling", "seconds_scoring", "seconds_streams", "seconds_training", "seconds_handover"), 1.0
)
LONG = tuple(f"{n} " + "word " * 9 for n in range(3))


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("groups", run_of(**COUNTS)),
        ("masked", run_of(**SHARES)),
        ("phases", run_of(**SECONDS)),
        ("gap", run_of(logprob_gap=1e-6, logprob_gap_max=1e-5)),
        ("heldout-steps", run_of(ks=(1, 4))),
        ("heldout-time", run_of(ks=(1, 4), domains=LONG)),
    ],
    ids=["groups", "masked", "phases", "gap", "one domain", "long names"],
)
def test_names_of_curves_are_whole_and_beside_them(name: str, run: RlRun) -> None:
    figure = drawn(name, run)
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    names, curves = legend.get_window_extent(), axes.get_window_extent()
    assert names.y0 >= curves.y1 - 1 and names.x1 <= figure.bbox.x1 + 1 and names.y1 <= figure.bbox.y1 + 1
    assert curves.width > 0.75 * figure.bbox.width and curves.height > 0.4 * figure.bbox.height


ASYNC_FIGURES = {
    **{f"staleness_{when}_{what}": 1.5 for when in ("put", "take") for what in ("mean", "max")},
    **{f"staleness_take_{n}": share for n, share in enumerate([0.25, 0.5, 0.25, 0.0])},
    **dict.fromkeys(("trainer_idle", "engine_idle", "prefix_hits", "trained_per_sampled"), 0.5),
    **{"rollout_p50": 2.0, "rollout_p99": 9.0, "logprob_drift": 0.01, "failed_sandbox": 2.0, "dropped_stale": 1.0},
}


@pytest.mark.parametrize("name", [chart.name for chart in ASYNCHRONOUS])
def test_charts_of_asynchronous_runs(name: str) -> None:
    drawn(name, run_of(**ASYNC_FIGURES))
    assert BY_NAME[name].draw(Figure().subplots(), run_of(reward=1.0)) != ""
    assert [chart.name for chart in charts_of(run_of(reward=1.0))] == [chart.name for chart in CHARTS]
    assert name in [chart.name for chart in charts_of(run_of(**ASYNC_FIGURES))]


def test_what_was_lost_is_named_if_it_occurred() -> None:
    axes = Figure().subplots()
    assert BY_NAME["lost"].draw(axes, run_of(**ASYNC_FIGURES, dropped_engine=0.0)) == ""
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["failed sandbox", "dropped stale"]
