"""Pieces of a report's HTML; what they are given is HTML already."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from arcforge_core.train.report_data import Figure

STYLE = Path(__file__).with_name("report_style.css")
"""Colours, light and dark, and the look of every page."""


def card(title: str, content: str) -> str:
    """Returns a box with a heading, which is text, and content."""
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div class="card">{heading}{content}</div>'


def table(head: list[str], rows: list[list[str]]) -> str:
    """Returns a table that scrolls where it is too wide."""
    top = "".join(f"<th>{h}</th>" for h in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def details(title: str, text: str) -> str:
    """Returns text, which is escaped, behind a line that opens it."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def configuration(config: str, versions: Mapping[str, Any]) -> str:
    """Returns the resolved configuration, and a table of versions; they are text."""
    resolved = details("config.yaml", config) if config else f"<p>{missing('config.yaml')}</p>"
    rows = [[escape(str(name)), escape(str(version))] for name, version in versions.items()]
    listed = table(["component", "version"], rows) if rows else f"<p>{missing('versions.json')}</p>"
    return f"{card('Configuration', resolved)}{card('Versions', listed)}"


def files(holds: Mapping[str, str], problems: Mapping[str, str]) -> str:
    """Returns a table of files: what each holds, and why it could not be read."""
    rows = []
    for name, content in holds.items():
        problem = problems.get(name)
        link = name if problem == "missing" else f'<a href="{name}">{name}</a>'
        note = f'<span class="missing">{escape(problem)}</span>' if problem else "read"
        rows.append([link, content, note])
    return card("", table(["file", "holds", "state"], rows))


def number(figure: Figure | None, form: Callable[[float], str]) -> str:
    """Returns a figure as HTML, its full value and source on hover; absent figures say missing."""
    if figure is None:
        return missing()
    value = figure.value
    shown = form(value) if isinstance(value, int | float) and math.isfinite(value) else str(value)
    return f'<span title="{escape(f"{value} ({figure.source})")}">{escape(shown)}</span>'


def missing(what: str = "") -> str:
    """Returns the mark of what is not there."""
    return f'<span class="missing">missing{escape(f": {what}" if what else "")}</span>'


def count(value: float) -> str:
    """Returns 1,234 or 12.3 M."""
    for limit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= 0.9995 * limit:  # what rounds to it
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
    """Returns a share in percent."""
    return f"{100 * value:.3g}%"
