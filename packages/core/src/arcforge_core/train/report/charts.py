"""The charts of a training run's report, and one PNG for a README."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.image
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, Formatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from arcforge_core.errors import DataError
from arcforge_core.report.charts import DASHED, SERIES, Chart, chart_style, draw_curve, legend_above, log_scale
from arcforge_core.report.files import METRICS
from arcforge_core.train.report.data import EVALUATIONS, Run, read_run


def needs(draw: Callable[[Axes, Run], None], *columns: str, file: str = METRICS) -> Callable[[Axes, Run], str]:
    """Wraps a drawing so that it returns the names of missing columns instead of drawing without them."""

    def checked(axes: Axes, run: Run) -> str:
        gaps = [f"{name} in {file}" for name in columns if not run.has(name, file=file)]
        if not gaps:
            draw(axes, run)
        return ", ".join(gaps)

    return checked


def draw_bits_per_byte(axes: Axes, run: Run) -> None:
    """Bits per byte over minutes, with the compressors as lines."""
    minutes, bits = run.evaluation["seconds"] / 60, run.evaluation["bits_per_byte"]
    axes.plot(minutes, bits, color=SERIES[0], marker="o", markersize=3.5, linewidth=1.8, label="this model")
    for name, label, color in (("gzip", "gzip -9", SERIES[1]), ("xz", "xz -9e", SERIES[2])):
        value = run.number(f"{name}_bits_per_byte")
        if value is not None:
            axes.axhline(value, color=color, linestyle=DASHED, linewidth=1.3, label=label)
    axes.set(xlabel="training time (minutes)", ylabel="bits per byte")
    axes.set_xlim(left=0)
    axes.margins(y=0.12)
    legend_above(axes)


def draw_loss(axes: Axes, run: Run) -> None:
    """Training and held-out loss."""
    _curve(axes, run, "loss", SERIES[0], "training")
    if run.has("step", "loss", file=EVALUATIONS):
        steps, loss = run.evaluation["step"], run.evaluation["loss"]
        axes.plot(steps, loss, color=SERIES[1], marker="o", markersize=3.5, linewidth=1.3, label="held-out")
    axes.set_ylabel("nats per token")
    legend_above(axes)


def draw_mtp(axes: Axes, run: Run) -> None:
    """Loss of each prediction depth."""
    depths = [n for n in range(1, 7) if run.has(f"mtp_loss_{n}")]
    for n in depths:
        _curve(axes, run, f"mtp_loss_{n}", SERIES[n - 1], f"{n + 1} tokens ahead")
    axes.set_ylabel("nats per token")
    legend_above(axes)


def draw_grad_norm(axes: Axes, run: Run) -> None:
    """Gradient norm, log scale."""
    _curve(axes, run, "grad_norm", SERIES[0], "")
    if (run.metrics["grad_norm"] > 0).any():
        log_scale(axes)
    axes.set_ylabel("gradient norm (log)")


def from_zero(name: str, label: str, form: Formatter | None = None) -> Callable[[Axes, Run], str]:
    """Returns a drawing of one column as it is, on an axis that begins at 0."""

    def draw(axes: Axes, run: Run) -> None:
        _curve(axes, run, name, SERIES[0], "", smooth=False)
        axes.set_ylabel(label)
        if form is not None:
            axes.yaxis.set_major_locator(MaxNLocator(5))
            axes.yaxis.set_major_formatter(form)
        axes.set_ylim(bottom=0)

    return needs(draw, "step", name)


def draw_balance(axes: Axes, run: Run) -> None:
    """Balance loss."""
    _curve(axes, run, "balance_loss", SERIES[0], "")
    axes.set_ylabel("balance loss")


def _curve(axes: Axes, run: Run, name: str, color: str, label: str, smooth: bool = True) -> None:
    draw_curve(axes, run.metrics["step"], run.metrics[name], color, label, smooth)


EXTREME = 8.0
"""Loads of experts, in units of the fair share, between 1 / EXTREME and EXTREME have different colours."""


def draw_experts(figure: Figure, run: Run) -> None:
    """One heat map per layer: experts over time, in units of the fair share, on a logarithmic scale."""
    steps, loads = run.expert_loads()
    grid = figure.subplots(len(loads), 1, squeeze=False, sharex=True)
    axes_L = [row[0] for row in grid]
    for axes, (layer, load_ER) in zip(axes_L, loads.items(), strict=True):
        shown_ER = np.maximum(load_ER, 1 / EXTREME)  # idle experts have no logarithm
        scale = LogNorm(1 / EXTREME, EXTREME)
        image = axes.imshow(shown_ER, aspect="auto", cmap="viridis", norm=scale, interpolation="nearest")
        axes.set_ylabel(f"layer {layer}", rotation=0, ha="right", va="center")
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.grid(visible=False)
        for side in axes.spines.values():
            side.set_visible(False)
    ticks = np.unique(np.linspace(0, steps.size - 1, min(6, steps.size)).astype(int))
    axes_L[-1].set_xticks(ticks, [f"{steps[t]:.0f}" for t in ticks])
    axes_L[-1].set_xlabel("step")
    bar: Any = figure.colorbar(image, ax=axes_L, label="load / fair share", extend="both", pad=0.02, fraction=0.05)
    loads_shown = [2.0**n for n in range(-3, 4)]
    bar.set_ticks(loads_shown, labels=[f"{load:g}" for load in loads_shown], minor=False)
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.solids.set_rasterized(True)


CHARTS = (
    Chart(
        "bits-per-byte",
        "Held-out bits per byte",
        "Lower is better; independent of the tokenizer. Points during the run are measured on a part of the "
        "held-out text, the last point of a finished run on all of it. The lines compress the same held-out files.",
        needs(draw_bits_per_byte, "seconds", "bits_per_byte", file=EVALUATIONS),
    ),
    Chart(
        "loss",
        "Next-token loss",
        "Training loss (faint: as logged; solid: running mean) and held-out loss.",
        needs(draw_loss, "step", "loss"),
    ),
    Chart(
        "mtp",
        "Multi-token prediction",
        "Loss of each depth of the shared prediction module on the training text.",
        needs(draw_mtp, "step", "mtp_loss_1"),
    ),
    Chart("lr", "Learning rate", "Rate of the first parameter group.", from_zero("lr", "learning rate")),
    Chart("grad-norm", "Gradient norm", "Before clipping.", needs(draw_grad_norm, "step", "grad_norm")),
    Chart(
        "throughput",
        "Throughput",
        "Training tokens per second, without evaluation and checkpoints.",
        from_zero("tokens_per_s", "tokens per second", EngFormatter(sep="")),
    ),
    Chart(
        "mfu",
        "Model FLOPs utilisation",
        "FLOPs of the model, without the optimizer's, over the matmul rate of this machine.",
        from_zero("mfu", "MFU", PercentFormatter(1.0)),
    ),
    Chart(
        "balance",
        "Balance loss",
        "The sequence-level loss that keeps experts in use.",
        needs(draw_balance, "step", "balance_loss"),
    ),
)


def experts_map(run: Run) -> str:
    """Returns the expert heat maps as HTML: pictures that stretch, between words that do not; requires expert loads."""
    steps, loads = run.expert_loads()
    scale, colors = LogNorm(1 / EXTREME, EXTREME, clip=True), matplotlib.colormaps["viridis"]
    rows = []
    for layer, load_ER in loads.items():
        pixels = (colors(scale(np.maximum(np.nan_to_num(load_ER, nan=1.0), 1 / EXTREME))) * 255).astype(np.uint8)
        height = min(160, max(48, 8 * load_ER.shape[0]))
        told = f"layer {layer}: load of {load_ER.shape[0]} experts over {steps.size} rows in time"
        picture = f'<img src="{_png(pixels)}" alt="{told}" title="{told}" style="height:{height}px">'
        rows.append(f"<span>layer {layer}</span>{picture}")
    ramp = (colors(np.linspace(0, 1, 64))[None] * 255).astype(np.uint8)
    ends = f'<span class="ends"><span>step {steps[0]:,.0f}</span><span>step {steps[-1]:,.0f}</span></span>'
    limits = f"<span>{1 / EXTREME:g} or less</span><span>1: fair share</span><span>{EXTREME:g} or more</span>"
    legend = f'<span>load</span><img src="{_png(ramp)}" alt="" style="height:10px"><span class="ends">{limits}</span>'
    return f'<div class="map">{"".join(rows)}{ends}{legend}</div>'


def _png(pixels: NDArray[np.uint8]) -> str:
    """Returns RGBA pixels [rows, columns, 4] as an address."""
    buffer = io.BytesIO()
    matplotlib.image.imsave(buffer, pixels, format="png")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def plot_run_png(run_dir: Path, out: Path) -> None:
    """Writes the README's figure of a run: bits per byte, and MTP loss or otherwise expert load.

    Raises:
        DataError: the run has no evaluations, or neither MTP losses nor expert loads.
    """
    run = read_run(run_dir)
    left, mtp = CHARTS[0], CHARTS[2]
    with chart_style("run"):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        panels: Any = figure.subfigures(1, 2)
        axes = panels[0].subplots()
        axes.set_title(left.title)
        gaps = [left.draw(axes, run)]
        if run.has("step", "mtp_loss_1"):
            axes = panels[1].subplots()
            mtp.draw(axes, run)
            axes.set_title(mtp.title)
        elif run.expert_loads()[1]:
            draw_experts(panels[1], run)
            panels[1].suptitle("Expert load")
        else:
            gaps.append(mtp.draw(panels[1].subplots(), run))
        if any(gaps):
            raise DataError(f"{run_dir}: missing {', '.join(filter(None, gaps))}")
        figure.savefig(out, dpi=160, facecolor="white")
