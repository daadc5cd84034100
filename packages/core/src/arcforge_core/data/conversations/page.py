"""``statistics.html``: what a corpus of conversations holds, and what was left out of it and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from arcforge_core.data.conversations.rejections import Rejection
from arcforge_core.train.report_html import STYLE
from arcforge_core.train.report_plots import HEIGHT, SERIES, WIDTH, chart_style, inline_svg

SHOWN = 20
"""Rejected records of each rule that the page lists; the file beside it has all."""
NOTES = {
    "sources": "What made the conversations, as their records say.",
    "modes": "Thinking: off, interleaved (cleared by a user's message), preserved.",
}


def write_page(path: Path, figures: Mapping[str, Any], rejections: Sequence[Rejection]) -> None:
    """Writes the page.

    Args:
        path: the file.
        figures: see `Statistics.figures`.
        rejections: all of them.
    """
    style = f"<style>{STYLE.read_text(encoding='utf-8')}</style>"
    groups = "".join(_groups(kind, figures[kind]) for kind in ("corpora", "sources", "modes"))
    path.write_text(
        f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Conversations</title>
{style}
</head><body>
<header><p class="eyebrow">arcforge conversations</p><h1>Conversations</h1></header>
<main>{_headline(figures)}
<h2>Lengths</h2><div class="card">{_lengths(figures["lengths"])}
<p class="note">Examples by tokens; the longest has {figures["longest"]:,}.</p></div>
{groups}
<h2>Tools</h2><div class="card">{_table(("tool", "calls"), figures["tools"].items())}</div>
<h2>Left out</h2><div class="card">{_rejected(figures["rejected"])}</div>
{_listed(rejections)}
</main>
<footer><a href="statistics.json">statistics.json</a> · <a href="rejected.jsonl">rejected.jsonl</a></footer>
</body></html>
""",
        encoding="utf-8",
    )


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
    return (
        '<div class="headline">'
        + "".join(
            f'<div class="card"><p class="value">{value}</p><p class="sub">{what}</p></div>' for value, what in cards
        )
        + "</div>"
    )


def _groups(kind: str, groups: Mapping[str, Mapping[str, int]]) -> str:
    names = ("conversations", "examples", "tokens", "trained")
    rows = (
        (name, *(counts.get(n, 0) for n in names), f"{counts.get('trained', 0) / max(1, counts.get('tokens', 0)):.1%}")
        for name, counts in sorted(groups.items())
    )
    note = f'<p class="note">{NOTES[kind]}</p>' if kind in NOTES else ""
    table = _table((kind, *names, "share trained"), rows)
    return f'<h2>{kind.capitalize()}</h2><div class="card">{table}{note}</div>'


def _rejected(rejected: Mapping[str, Mapping[str, int]]) -> str:
    corpora = sorted({corpus for counts in rejected.values() for corpus in counts})
    rows = ((rule, *(counts.get(corpus, 0) for corpus in corpora)) for rule, counts in rejected.items())
    return _table(("rule", *corpora), rows) if rejected else "<p>Nothing was left out.</p>"


def _listed(rejections: Sequence[Rejection]) -> str:
    """Lists the first records that each rule has left out."""
    parts = []
    for rule in dict.fromkeys(rejection.rule for rejection in rejections):
        found = [rejection for rejection in rejections if rejection.rule == rule]
        table = _table(("file", "line", "reason"), ((r.file, r.line, r.reason[:300]) for r in found[:SHOWN]))
        parts.append(f"<details><summary>{escape(rule)}: {len(found):,}</summary>{table}</details>")
    return f'<div class="card">{"".join(parts)}</div>' if parts else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def cell(value: Any, tag: str = "td", number: bool = False) -> str:
        shown = f"{value:,}" if isinstance(value, int) else escape(str(value))
        return f'<{tag} class="n">{shown}</{tag}>' if number or isinstance(value, int) else f"<{tag}>{shown}</{tag}>"

    body = "".join(f"<tr>{''.join(cell(value) for value in row)}</tr>" for row in rows)
    titles = "".join(cell(name, "th", n > 0) for n, name in enumerate(head))
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def _lengths(lengths: Mapping[str, int]) -> str:
    with chart_style("lengths"):
        figure = Figure(figsize=(2 * WIDTH, HEIGHT), layout="constrained")
        axes = figure.subplots()
        axes.bar([f"≤ {int(limit):,}" for limit in lengths], list(lengths.values()), color=SERIES[0])
        axes.set(xlabel="tokens", ylabel="examples")
        return inline_svg(figure, "lengths", "Examples by length")
