"""A page with pictures of decks and what the rules find in them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

from PIL import Image

from arcforge_core.report.html import card, table
from arcforge_core.report.page import Page, Section
from arcforge_rl.slides.rendering.browser import Rendered
from arcforge_rl.slides.rules import RULES
from arcforge_rl.slides.select import Candidate

SMALL = (480, 270)
STYLE = """
.decks { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; }
.decks figure { margin: 0; }
.decks img { width: 100%; height: auto; border: 1px solid; }
.decks figcaption { font-size: 0.85rem; }
"""


def gallery(decks: Sequence[tuple[Candidate, Rendered]], title: str) -> Page:
    """Returns a page with a section per deck.

    Args:
        decks: with pictures of their pages.
        title: of the page.
    """
    broken: dict[str, int] = {}
    for deck, _ in decks:
        for name in {finding.rule for finding in deck.verdict.findings}:
            broken[name] = broken.get(name, 0) + 1
    rows = [
        [escape(name), RULES[name].cost.value, count] for name, count in sorted(broken.items(), key=lambda row: -row[1])
    ]
    mean = sum(deck.verdict.score for deck, _ in decks) / max(1, len(decks))
    sections = [
        Section("", card("decks", f"{len(decks)}") + card("mean score", f"{mean:.3f}"), headline=True),
        Section("Broken rules", card("", table(["rule", "costs", "decks"], rows) if rows else "<p>none</p>")),
        *(_section(number, deck, shown) for number, (deck, shown) in enumerate(decks, 1)),
    ]
    return Page("slides", title, sections, style=STYLE)


def _section(number: int, deck: Candidate, shown: Rendered) -> Section:
    figures = []
    for page, picture in enumerate(shown.pictures, 1):
        score = deck.verdict.pages[page - 1] if page <= len(deck.verdict.pages) else 0.0
        found = [finding for finding in deck.verdict.findings if finding.page == page]
        said = "; ".join(f"{finding.rule}: {finding.detail}" for finding in found) or "keeps every rule"
        caption = f"<figcaption>page {page}, {score:.2f}: {escape(said)}</figcaption>"
        figures.append(f'<figure><img alt="page {page}" src="{_small(picture)}">{caption}</figure>')
    whole = [str(finding) for finding in deck.verdict.findings if finding.page is None]
    notes = "".join(f"<p>{escape(note)}</p>" for note in [*whole, *([shown.flaw] if shown.flaw else [])])
    content = (
        f'<p>{escape(deck.task)}, score {deck.verdict.score:.3f}</p>{notes}<div class="decks">{"".join(figures)}</div>'
    )
    return Section(f"Deck {number}", content)


def _small(picture: bytes) -> str:
    with Image.open(io.BytesIO(picture), formats=("PNG",)) as image:
        small = image.convert("RGB")
    small.thumbnail(SMALL)
    file = io.BytesIO()
    small.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
