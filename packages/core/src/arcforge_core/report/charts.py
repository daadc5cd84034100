"""Charts of a page: inline SVG that follows the page's colours, and its curves as data for ``charts.js``.

The palette is Okabe and Ito's, which colour-blind readers can distinguish.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from typing import Any, Generic, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from arcforge_core.report.curves import STACK, curves
from arcforge_core.report.html import card, missing

INK, MUTED, GRID = "#1f2328", "#59636e", "#d1d9e0"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid"} | {c: f"series-{n}" for n, c in enumerate(SERIES)}
"""Colour -> CSS variable that replaces it in a page, so that dark mode has its own colours."""
WIDTH, HEIGHT = 5.4, 2.9
PIXELS = 96
"""Minimum width of a picture per inch of its drawing: text of nine points or more has at least 12 pixels."""
CHART = '<figure class="chart"'
"""How a chart begins that ``charts.js`` draws again."""
LEGEND_WIDTH, LEGEND_LINE = 68, 7
"""Characters per row of a legend as wide as `WIDTH`, and those taken up by a curve's line sample."""
DASHED = (0, (4, 2))
SMOOTH_ROWS = 60
"""Curves with more rows also get a running mean over a thirtieth of them."""
R = TypeVar("R")


@dataclass(frozen=True)
class Chart(Generic[R]):
    """A chart of a page, drawn from a run's files.

    Attributes:
        name: unique in the page.
        title: the quantity shown.
        note: how to read it.
        draw: draws on the axes; if there is no data, returns a description of the missing data instead.
        marks: steps with a dashed line, one per warning.
    """

    name: str
    title: str
    note: str
    draw: Callable[[Axes, R], str]
    marks: Callable[[R], Collection[float]] = lambda run: ()

    def card(self, run: R) -> str:
        """Returns the chart, or a description of the missing data, with its note."""
        gap, marks = "", self.marks(run)

        def draw(axes: Axes) -> None:
            nonlocal gap
            gap = self.draw(axes, run)
            for step in marks:
                axes.axvline(step, color=SERIES[1], linewidth=1.0, linestyle=DASHED)

        with warnings.catch_warnings():  # text stays text, so the browser supplies fonts that matplotlib lacks
            warnings.filterwarnings("ignore", message="Glyph")
            svg = chart_svg(self.name, self.title, draw)
        note = f"{self.note} Dashed: a warning." if marks else self.note
        content = f"<p>{missing(gap)}</p>" if gap else svg
        return card(self.title, f'{content}<p class="note">{escape(note)}</p>')


def chart_cards(charts: Iterable[Chart[R]], run: R) -> str:
    """Returns charts side by side."""
    return f'<div class="grid">\n{"".join(chart.card(run) for chart in charts)}\n</div>'


def chart_svg(name: str, title: str, draw: Callable[[Axes], None], width: float = WIDTH, height: float = HEIGHT) -> str:
    """Returns a drawing of lines on one pair of axes as a ``<figure>`` with its curves as data.

    `name` must be unique in the page, and the same in pages of other runs, whose curves the reader may add.
    """
    with chart_style(name):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        picture = inline_svg(figure, title)
    data = json.dumps(curves(axes, title, SERIES), ensure_ascii=False, allow_nan=False).replace("<", r"\u003c")
    return f'{CHART} data-name="{escape(name)}">{picture}<script type="application/json">{data}</script></figure>'


def figure_svg(name: str, title: str, draw: Callable[[Figure], None], width: float, height: float) -> str:
    """Returns a figure of several axes as a ``<figure>``, which scrolls where it is too wide."""
    with chart_style(name):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        return f'<figure class="picture" tabindex="0">{inline_svg(figure, title)}</figure>'


def draw_curve(
    axes: Axes,
    steps: NDArray[np.float64],
    values: NDArray[np.float64],
    color: str,
    label: str,
    smooth: bool = True,
    **line: Any,
) -> None:
    """Draws values over steps; a long noisy curve is faint, with its running mean on top."""
    shown = np.isfinite(values)
    steps, values = steps[shown], values[shown]
    if smooth and values.size > SMOOTH_ROWS:
        axes.plot(steps, values, color=color, linewidth=0.7, alpha=0.35)
        values = running_mean(values, values.size // 30)
    marker = "o" if values.size == 1 else None
    axes.plot(steps, values, color=color, label=label, **{"linewidth": 1.6, "marker": marker, **line})
    axes.set_xlabel("step")


def running_mean(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Returns means over `width` neighbours, fewer at the ends."""
    ones = np.ones(width)
    return np.convolve(values, ones, "same") / np.convolve(np.ones_like(values), ones, "same")


def draw_stack(axes: Axes, steps: NDArray[np.float64], parts: dict[str, NDArray[np.float64]]) -> None:
    """Draws parts on top of each other; the first is at the bottom."""
    sums = np.cumsum([np.nan_to_num(values) for values in parts.values()], axis=0)
    below = np.zeros_like(steps)
    for number, (label, upper) in enumerate(zip(parts, sums, strict=True)):
        color = SERIES[number % len(SERIES)]
        axes.plot(steps, upper, color=color, label=label, linewidth=1.0, gid=STACK)
        axes.fill_between(steps, below, upper, color=color, alpha=0.75)
        below = upper
    axes.set_ylim(bottom=0)


def legend_above(axes: Axes) -> None:
    """Puts the legend above the curves, in as many columns as fit, so that it covers none of them."""
    longest = max(len(label) for label in axes.get_legend_handles_labels()[1])
    columns = max(1, LEGEND_WIDTH // (longest + LEGEND_LINE))
    axes.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderpad=0.0, columnspacing=1.2, handlelength=1.4
    )


def log_scale(axes: Axes) -> None:
    """Makes the vertical axis logarithmic, with plain numbers at 1, 2 and 5."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def chart_style(name: str) -> AbstractContextManager[None]:
    """Small axes without decoration; `name` makes element ids of several charts in one page distinct."""
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


def inline_svg(figure: Figure, title: str) -> str:
    """Returns the figure as one element: no prologue, namespaces or size, and colours as CSS variables."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, dpi=200)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    view_box = re.search(r'viewBox="[^"]*"', svg)
    assert view_box is not None
    least = f"min-width:{PIXELS * figure.get_figwidth():.0f}px"
    opening = f'<svg {view_box[0]} role="img" aria-label="{escape(title)}" style="{least}">'
    svg = re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)
    svg = svg.replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: m[0] if m[1] in used else "", svg)
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    return svg.strip()
