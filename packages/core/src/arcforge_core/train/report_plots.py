"""The curves of a run: inline SVG that follows the page's colours, and one PNG for a README.

The palette is Okabe and Ito's, which colour-blind readers can tell apart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from arcforge_core.errors import DataError
from arcforge_core.train.report_data import Run, read_run

INK, MUTED, GRID = "#1f2328", "#59636e", "#d1d9e0"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid"} | {c: f"series-{n}" for n, c in enumerate(SERIES)}
"""Colour -> CSS variable that replaces it in a page, so that dark mode has colours of its own."""
WIDTH, HEIGHT = 5.4, 2.9
SMOOTH_ROWS = 60
"""Curves with more rows also get a running mean over a thirtieth of them."""


@dataclass(frozen=True)
class Plot:
    """One chart of the report.

    Attributes:
        name: unique in the page.
        title: what it shows.
        note: how to read it.
        needs: (file, column) without which there is nothing to draw.
        draw: draws on the axes.
    """

    name: str
    title: str
    note: str
    needs: tuple[tuple[str, str], ...]
    draw: Callable[[Axes, Run], None]

    def missing(self, run: Run) -> list[str]:
        """Returns what the run does not have of what is needed."""
        return [f"{column} in {file}" for file, column in self.needs if not run.has(file, column)]


# ---- charts --------------------------------------------------------------------------------------------------------


def draw_bits_per_byte(axes: Axes, run: Run) -> None:
    """Bits per byte over minutes, with the compressors as lines."""
    minutes, bits = run.evaluation["seconds"] / 60, run.evaluation["bits_per_byte"]
    axes.plot(minutes, bits, color=SERIES[0], marker="o", markersize=3.5, linewidth=1.8)
    for name, label, color in (("gzip", "gzip -9", SERIES[1]), ("xz", "xz -9e", SERIES[2])):
        value = run.number(f"{name}_bits_per_byte")
        if value is not None:
            axes.axhline(value, color=color, linestyle=(0, (5, 3)), linewidth=1.3)
            at = (1.0, value)
            axes.annotate(
                label, at, (0, 3), axes.get_yaxis_transform(), "offset points", color=color, ha="right", va="bottom"
            )
    axes.set(xlabel="training time (minutes)", ylabel="bits per byte")
    axes.set_xlim(left=0)
    axes.margins(y=0.12)


def draw_loss(axes: Axes, run: Run) -> None:
    """Training and held-out loss."""
    _curve(axes, run, "loss", SERIES[0], "training")
    if run.has("eval.csv", "step") and run.has("eval.csv", "loss"):
        steps, loss = run.evaluation["step"], run.evaluation["loss"]
        axes.plot(steps, loss, color=SERIES[1], marker="o", markersize=3.5, linewidth=1.3, label="held-out")
    axes.set_ylabel("nats per token")
    axes.legend()


def draw_mtp(axes: Axes, run: Run) -> None:
    """Loss of each prediction depth."""
    depths = [n for n in range(1, 7) if run.has("metrics.csv", f"mtp_loss_{n}")]
    for n in depths:
        _curve(axes, run, f"mtp_loss_{n}", SERIES[n - 1], f"{n + 1} tokens ahead")
    axes.set_ylabel("nats per token")
    axes.legend()


def draw_rate(axes: Axes, run: Run) -> None:
    """Learning rate."""
    _curve(axes, run, "lr", SERIES[0], "", smooth=False)
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0)


def draw_grad_norm(axes: Axes, run: Run) -> None:
    """Gradient norm, log scale."""
    _curve(axes, run, "grad_norm", SERIES[0], "")
    if (run.metrics["grad_norm"] > 0).any():
        log_scale(axes)
    axes.set_ylabel("gradient norm (log)")


def log_scale(axes: Axes) -> None:
    """Makes the vertical axis logarithmic, with plain figures at 1, 2 and 5."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def draw_throughput(axes: Axes, run: Run) -> None:
    """Tokens per second."""
    _curve(axes, run, "tokens_per_s", SERIES[0], "", smooth=False)
    axes.set_ylabel("tokens per second")
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(bottom=0)


def draw_utilisation(axes: Axes, run: Run) -> None:
    """Model FLOPs utilisation."""
    _curve(axes, run, "mfu", SERIES[0], "", smooth=False)
    axes.set_ylabel("MFU")
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(bottom=0)


def draw_balance(axes: Axes, run: Run) -> None:
    """Balance loss."""
    _curve(axes, run, "balance_loss", SERIES[0], "")
    axes.set_ylabel("balance loss")


def _curve(axes: Axes, run: Run, name: str, color: str, label: str, smooth: bool = True) -> None:
    """Draws a column over steps."""
    draw_curve(axes, run.metrics["step"], run.metrics[name], color, label, smooth)


def draw_curve(
    axes: Axes,
    steps: NDArray[np.float64],
    values: NDArray[np.float64],
    color: str,
    label: str,
    smooth: bool = True,
    **line: Any,
) -> None:
    """Draws values over steps; a long noisy curve faintly, with its running mean on top."""
    shown = np.isfinite(values)
    steps, values = steps[shown], values[shown]
    if smooth and values.size > SMOOTH_ROWS:
        axes.plot(steps, values, color=color, linewidth=0.7, alpha=0.35)
        values = running_mean(values, values.size // 30)
    marker = "o" if values.size == 1 else None
    axes.plot(steps, values, color=color, label=label, **{"linewidth": 1.6, "marker": marker, **line})
    axes.set_xlabel("step")


def running_mean(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Returns means over `width` neighbours, over fewer at the ends."""
    ones = np.ones(width)
    return np.convolve(values, ones, "same") / np.convolve(np.ones_like(values), ones, "same")


def draw_experts(figure: Figure, run: Run) -> None:
    """One heat map per layer: experts over time, in units of the fair share."""
    steps, loads = run.expert_loads()
    grid = figure.subplots(len(loads), 1, squeeze=False, sharex=True)
    axes_L = [row[0] for row in grid]
    for axes, (layer, load_ER) in zip(axes_L, loads.items(), strict=True):
        image = axes.imshow(load_ER, aspect="auto", cmap="viridis", vmin=0, vmax=2, interpolation="nearest")
        axes.set_ylabel(f"layer {layer}", rotation=0, ha="right", va="center")
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.grid(visible=False)
        for side in axes.spines.values():
            side.set_visible(False)
    ticks = np.unique(np.linspace(0, steps.size - 1, min(6, steps.size)).astype(int))
    axes_L[-1].set_xticks(ticks, [f"{steps[t]:.0f}" for t in ticks])
    axes_L[-1].set_xlabel("step")
    bar: Any = figure.colorbar(image, ax=axes_L, label="load / fair share", extend="max", pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    bar.solids.set_rasterized(True)


PLOTS = (
    Plot(
        "bits-per-byte",
        "Held-out bits per byte",
        "Lower is better; independent of the tokenizer. Points during the run are measured on a part of the "
        "held-out text, the last point of a finished run on all of it. The lines compress the same held-out files.",
        (("eval.csv", "seconds"), ("eval.csv", "bits_per_byte")),
        draw_bits_per_byte,
    ),
    Plot(
        "loss",
        "Next-token loss",
        "Training loss (faint: as logged; solid: running mean) and held-out loss.",
        (("metrics.csv", "step"), ("metrics.csv", "loss")),
        draw_loss,
    ),
    Plot(
        "mtp",
        "Multi-token prediction",
        "Loss of each depth of the shared prediction module on the training text.",
        (("metrics.csv", "step"), ("metrics.csv", "mtp_loss_1")),
        draw_mtp,
    ),
    Plot(
        "lr",
        "Learning rate",
        "Rate of the first parameter group.",
        (("metrics.csv", "step"), ("metrics.csv", "lr")),
        draw_rate,
    ),
    Plot(
        "grad-norm",
        "Gradient norm",
        "Before clipping.",
        (("metrics.csv", "step"), ("metrics.csv", "grad_norm")),
        draw_grad_norm,
    ),
    Plot(
        "throughput",
        "Throughput",
        "Training tokens per second, evaluation and checkpoints left out.",
        (("metrics.csv", "step"), ("metrics.csv", "tokens_per_s")),
        draw_throughput,
    ),
    Plot(
        "mfu",
        "Model FLOPs utilisation",
        "FLOPs of the model's mathematics, without the optimizer's, over what this machine's matrix products reach.",
        (("metrics.csv", "step"), ("metrics.csv", "mfu")),
        draw_utilisation,
    ),
    Plot(
        "balance",
        "Balance loss",
        "The sequence-level loss that keeps experts in use.",
        (("metrics.csv", "step"), ("metrics.csv", "balance_loss")),
        draw_balance,
    ),
)


# ---- output --------------------------------------------------------------------------------------------------------


def plot_svg(plot: Plot, run: Run) -> str:
    """Returns a chart as an inline ``<svg>`` element. Nothing that it needs may be missing."""
    return chart_svg(plot.name, plot.title, lambda axes: plot.draw(axes, run))


def chart_svg(name: str, title: str, draw: Callable[[Axes], None]) -> str:
    """Returns what is drawn on one pair of axes as an inline ``<svg>`` element; `name` is unique in the page."""
    with chart_style(name):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        draw(figure.subplots())
        return inline_svg(figure, name, title)


def experts_svg(run: Run) -> str:
    """Returns the expert heat maps as an inline ``<svg>`` element. There must be loads."""
    _, loads = run.expert_loads()
    with chart_style("experts"):
        height = 0.7 + sum(min(1.6, max(0.55, 0.075 * load_ER.shape[0])) for load_ER in loads.values())
        figure = Figure(figsize=(2 * WIDTH, height), layout="constrained")
        draw_experts(figure, run)
        return inline_svg(figure, "experts", "Expert load")


def plot_run_png(run_dir: Path, out: Path) -> None:
    """Writes the README's picture of a run: bits per byte, and MTP loss or else expert load.

    Raises:
        DataError: the run has no evaluations, or neither MTP losses nor expert loads.
    """
    run = read_run(run_dir)
    left, mtp = PLOTS[0], PLOTS[2]
    has_loads = bool(run.expert_loads()[1])
    gaps = left.missing(run) + ([] if has_loads else mtp.missing(run))
    if gaps:
        raise DataError(f"{run_dir}: missing {', '.join(gaps)}")
    with chart_style("run"):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        panels: Any = figure.subfigures(1, 2)
        axes = panels[0].subplots()
        left.draw(axes, run)
        axes.set_title(left.title)
        if not mtp.missing(run):
            axes = panels[1].subplots()
            mtp.draw(axes, run)
            axes.set_title(mtp.title)
        else:
            draw_experts(panels[1], run)
            panels[1].suptitle("Expert load")
        figure.savefig(out, dpi=160, facecolor="white")


def chart_style(name: str) -> AbstractContextManager[None]:
    """Small, quiet axes; `name` keeps the ids of several charts in one page apart."""
    settings: Any = {
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.edgecolor": GRID,
        "axes.labelcolor": MUTED,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": name,
    }
    return matplotlib.rc_context(settings)


def inline_svg(figure: Figure, name: str, title: str) -> str:
    """Returns the figure as one element: no prologue, no namespaces, no own size, colours as CSS variables."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, dpi=200)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    view_box = re.search(r'viewBox="[^"]*"', svg)
    assert view_box is not None
    svg = re.sub(r"<svg[^>]*>", f'<svg {view_box[0]} role="img" aria-label="{title}">', svg, count=1)
    svg = svg.replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: m[0] if m[1] in used else "", svg)
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    return svg.strip()
