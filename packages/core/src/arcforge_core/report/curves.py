"""The curves of a drawing as data, from which ``charts.js`` draws it in the browser at any width.

One description of a chart, its drawing on matplotlib axes, serves both: the picture for browsers without JavaScript and
this data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, Formatter, PercentFormatter

STACK = "stack"
"""``gid`` of a line that is a sum with those below it; the page shows its own part and fills the area."""
FORMS = {PercentFormatter: "percent", EngFormatter: "si"}
DIGITS = 6


def curves(axes: Axes, title: str, colors: tuple[str, ...]) -> dict[str, Any]:
    """Returns title, axes and series of what was drawn with lines.

    Args:
        axes: with the drawing; anything but lines is left to the picture.
        title: of the chart.
        colors: those that the page has variables for; a series holds the number of its own.
    """
    found = np.concatenate(
        [np.empty(0), *(np.asarray(li.get_xdata(), float) for li in axes.lines if all(_follows(li)))]
    )
    finite = found[np.isfinite(found)]
    ends = [float(finite.min()), float(finite.max())] if finite.size else [0.0, 1.0]
    bottom, top = axes.get_ylim()
    free = axes.get_autoscaley_on() or axes.get_yscale() == "log"
    return {
        "title": title,
        "x": {"label": axes.get_xlabel(), "form": _form(axes.xaxis.get_major_formatter())},
        "y": {
            "label": axes.get_ylabel().removesuffix(" (log)"),
            "form": _form(axes.yaxis.get_major_formatter()),
            "log": axes.get_yscale() == "log",
            "from": None if free else max(0.0, bottom),
            "to": None if free else top,
        },
        "marks": [float(np.asarray(line.get_xdata())[0]) for line in axes.lines if _follows(line) == (True, False)],
        "series": [_series(line, ends, colors) for line in axes.lines if _follows(line)[1]],
    }


def _follows(line: Line2D) -> tuple[bool, bool]:
    """Whether x and y are data; a line across the axes has one that is not."""
    assert isinstance(line.axes, Axes)
    x, y = line.get_transform().contains_branch_seperately(line.axes.transData)
    return bool(x), bool(y)


def _series(line: Line2D, ends: list[float], colors: tuple[str, ...]) -> dict[str, Any]:
    label, color = str(line.get_label()), to_hex(line.get_color())
    across = not _follows(line)[0]
    x = ends if across else np.asarray(line.get_xdata(), float)
    return {
        "label": "" if label.startswith("_") else label.replace(r"\$", "$"),
        "color": colors.index(color) if color in colors else 0,
        "dashed": line.get_linestyle() not in ("-", "None"),
        "points": line.get_marker() not in ("None", "", None),
        "faint": (line.get_alpha() or 1.0) < 0.5,
        "stack": line.get_gid() == STACK,
        "x": [_number(value) for value in x],
        "y": [_number(value) for value in np.asarray(line.get_ydata(), float)],
    }


def _form(formatter: Formatter) -> str:
    return next((name for kind, name in FORMS.items() if isinstance(formatter, kind)), "plain")


def _number(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None
