"""Pieces of a report's HTML; what they are given is HTML already."""

from __future__ import annotations

from html import escape


def card(title: str, content: str) -> str:
    """Returns a box with a heading, which is text, and content."""
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div class="card">{heading}{content}</div>'


def table(head: list[str], rows: list[list[str]]) -> str:
    """Returns a table that scrolls where it is too wide."""
    top = "".join(f"<th>{h}</th>" for h in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
