"""``statistics.html``: statistics of a corpus of conversations, and its rejected records with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from arcforge_core.data.conversations.rejections import Rejection
from arcforge_core.report.html import card, table
from arcforge_core.report.page import Page, Section

SHOWN = 20
"""Maximum number of rejected records per rule on the page; the file beside it lists all."""
NOTES = {
    "sources": "Origin of the conversations, as given in their records.",
    "modes": "Thinking: off, interleaved (cleared by a user's message), preserved.",
}


def write_page(path: Path, figures: Mapping[str, Any], rejections: Sequence[Rejection]) -> None:
    """Writes the page.

    Args:
        path: output file.
        figures: see `Statistics.figures`.
        rejections: all rejected records.
    """
    page = Page(
        kind="conversations",
        title="Conversations",
        sections=[
            Section("", _headline(figures), headline=True),
            Section("Lengths", card("", _lengths(figures["lengths"], figures["longest"]))),
            *(_groups(kind, figures[kind]) for kind in ("corpora", "sources", "modes")),
            Section("Tools", card("", _table(("tool", "calls"), figures["tools"].items()))),
            Section("Left out", card("", _rejected(figures["rejected"])) + _listed(rejections)),
        ],
        footer='<a href="statistics.json">statistics.json</a> · <a href="rejected.jsonl">rejected.jsonl</a>',
    )
    page.write(path)


def _headline(figures: Mapping[str, Any]) -> str:
    totals = {
        name: sum(counts.get(name, 0) for counts in figures["corpora"].values())
        for name in ("conversations", "examples", "tokens", "trained")
    }
    share = totals["trained"] / max(1, totals["tokens"])
    masked = figures["messages"].get("of them kept out of the loss", 0)
    cards = (
        (f"{totals['conversations']:,}", f"conversations of {sum(figures['read'].values()):,} records"),
        (f"{totals['tokens']:,}", f"tokens in {totals['examples']:,} examples"),
        (f"{share:.1%}", f"of the tokens are trained on; {masked:,} messages of the assistant are kept out"),
    )
    return "".join(card("", f'<p class="value">{value}</p><p class="sub">{what}</p>') for value, what in cards)


def _groups(kind: str, groups: Mapping[str, Mapping[str, int]]) -> Section:
    names = ("conversations", "examples", "tokens", "trained")
    rows = (
        (name, *(counts.get(n, 0) for n in names), f"{counts.get('trained', 0) / max(1, counts.get('tokens', 0)):.1%}")
        for name, counts in sorted(groups.items())
    )
    note = f'<p class="note">{NOTES[kind]}</p>' if kind in NOTES else ""
    return Section(kind.capitalize(), card("", _table((kind, *names, "share trained"), rows) + note))


def _rejected(rejected: Mapping[str, Mapping[str, int]]) -> str:
    corpora = sorted({corpus for counts in rejected.values() for corpus in counts})
    rows = ((rule, *(counts.get(corpus, 0) for corpus in corpora)) for rule, counts in rejected.items())
    return _table(("rule", *corpora), rows) if rejected else "<p>Nothing was left out.</p>"


def _listed(rejections: Sequence[Rejection]) -> str:
    """Lists the first records that each rule rejected."""
    parts = []
    for rule in dict.fromkeys(rejection.rule for rejection in rejections):
        found = [rejection for rejection in rejections if rejection.rule == rule]
        listed = _table(("file", "line", "reason"), ((r.file, r.line, r.reason[:300]) for r in found[:SHOWN]))
        parts.append(f"<details><summary>{escape(rule)}: {len(found):,}</summary>{listed}</details>")
    return card("", "".join(parts)) if parts else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    escaped = [[value if isinstance(value, int) else escape(str(value)) for value in row] for row in rows]
    return table([escape(name) for name in head], escaped)


def _lengths(lengths: Mapping[str, int], longest: int) -> str:
    """Returns a histogram of HTML bars, which fit any width."""
    most = max(lengths.values(), default=0) or 1
    color = "background:var(--series-0)"
    rows = (
        f'<span>≤ {int(limit):,}</span><span class="bar" style="width:{100 * n / most:.1f}%;{color}"></span>'
        f"<span>{n:,}</span>"
        for limit, n in lengths.items()
    )
    note = f'<p class="note">Examples by tokens; the longest has {longest:,}.</p>'
    return f'<div class="bars histogram">{"".join(rows)}</div>{note}'
