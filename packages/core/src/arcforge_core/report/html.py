"""Building blocks of a page's HTML. Cells and contents are HTML; titles are plain text and are escaped here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from arcforge_core.report.files import Figure


def card(title: str, content: str) -> str:
    """Returns a box with a heading and content."""
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div class="card">{heading}{content}</div>'


SORTABLE = '<table class="sortable">'
"""A table that the reader may sort by a click on a heading."""


def table(head: Sequence[str], rows: Sequence[Sequence[str | int]], sortable: bool = False) -> str:
    """Returns a table that scrolls where it is too wide; integers are aligned to the right."""

    def cell(value: str | int, tag: str, number: bool) -> str:
        shown = f"{value:,}" if isinstance(value, int) else value
        return f'<{tag} class="n">{shown}</{tag}>' if number else f"<{tag}>{shown}</{tag}>"

    numbers = [bool(rows) and isinstance(rows[0][n], int) for n in range(len(head))]
    top = "".join(cell(name, "th", number) for name, number in zip(head, numbers, strict=True))
    lines = ("".join(cell(value, "td", isinstance(value, int)) for value in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    start = SORTABLE if sortable else "<table>"
    return f'<div class="scroll" tabindex="0">{start}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def details(title: str, text: str) -> str:
    """Returns escaped text in a collapsible element with a title."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def configuration(config: str, versions: Mapping[str, Any]) -> str:
    """Returns the resolved configuration and a table of versions; both are plain text."""
    resolved = details("config.yaml", config) if config else f"<p>{missing('config.yaml')}</p>"
    rows = [[escape(str(name)), escape(str(version))] for name, version in versions.items()]
    listed = table(["component", "version"], rows) if rows else f"<p>{missing('versions.json')}</p>"
    return f'<div class="stack">{card("Configuration", resolved)}{card("Versions", listed)}</div>'


def files(holds: Mapping[str, str], problems: Mapping[str, str]) -> str:
    """Returns a table of files: the content of each, or the reason why it could not be read."""
    rows = []
    for name, content in holds.items():
        problem = problems.get(name)
        link = name if problem == "missing" else f'<a href="{name}">{name}</a>'
        note = f'<span class="missing">{escape(problem)}</span>' if problem else "read"
        rows.append([link, content, note])
    return card("", table(["file", "holds", "state"], rows))


def number(figure: Figure | None, form: Callable[[float], str]) -> str:
    """Returns a figure as HTML, with its full value and source on hover, or the mark for missing data."""
    if figure is None:
        return missing()
    value = figure.value
    shown = form(value) if isinstance(value, int | float) and math.isfinite(value) else str(value)
    return f'<span title="{escape(f"{value} ({figure.source})")}">{escape(shown)}</span>'


def missing(what: str = "") -> str:
    """Returns the mark for missing data."""
    return f'<span class="missing">missing{escape(f": {what}" if what else "")}</span>'


def count(value: float) -> str:
    """Returns 1,234 or 12.3 M."""
    for limit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= 0.9995 * limit:  # includes values that round up to the unit
            return f"{value / limit:.3g} {letter}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Returns 45 s, 8 min 05 s or 2 h 03 min."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def decimals(value: float) -> str:
    """Returns three decimals."""
    return f"{value:.3f}"


def percent(value: float) -> str:
    """Returns a fraction as a percentage."""
    return f"{100 * value:.3g}%"
