"""Rules about what a page says, against its brief."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from arcforge_rl.slides.brief import PageBrief, Point
from arcforge_rl.slides.geometry import PageLayout, Paragraph
from arcforge_rl.slides.rules import Finding

MOST_WORDS, MOST_IN_POINT, FEWEST_IN_POINT = 90, 25, 4
NUMBER = re.compile(r"\d[\d.,]*(?<![.,])%?")
PAGE_NUMBER = re.compile(r"(?:page )?(\d{1,2})(?: ?(?:/|of) ?(\d{1,2}))?", re.IGNORECASE)


def says(layout: PageLayout, brief: PageBrief, count: int) -> Iterator[Finding]:
    """Yields the broken rules of one page.

    Args:
        layout: of the page.
        brief: its title and points.
        count: pages of the deck, for page numbers.
    """
    for rule, detail in _flaws(layout.paragraphs, brief, (layout.page.page or 0, count)):
        yield Finding(rule, layout.page.page, detail)


def _flaws(paragraphs: Sequence[Paragraph], brief: PageBrief, place: tuple[int, int]) -> Iterator[tuple[str, str]]:
    texts = [normal(one.text) for one in paragraphs]
    wanted = [normal(brief.title), *([normal(brief.line)] if brief.line else [])]
    for text in wanted:
        if text not in texts:
            yield "missing_title", repr(text)
    left = [text for text in texts if text not in wanted]
    for point in brief.points:
        found = next((text for text in left if makes(text, point)), None)
        if found is None:
            yield "missing_point", repr(point.text)
        else:
            left.remove(found)
    known = {figure for point in brief.points for figure in NUMBER.findall(point.text)}
    for text in texts:
        if (page := PAGE_NUMBER.fullmatch(text)) and (int(page[1]), int(page[2] or place[1])) == place:
            continue
        if strange := [number for number in NUMBER.findall(text) if number not in known]:
            yield "invented_figure", f"{strange[0]} in {text[:40]!r}"
            break
    if twice := [text for n, text in enumerate(texts) if text in texts[:n]]:
        yield "repeated_text", repr(twice[0][:40])
    for point in brief.points:
        if sum(normal(point.subject) in text for text in texts) > 1:
            yield "repeated_text", f"{point.subject!r} is in two texts"
    if (count := sum(len(text.split()) for text in texts)) > MOST_WORDS:
        yield "stuffed", f"{count} words"


def makes(text: str, point: Point) -> bool:
    """Whether a text makes a point: its subject and its figure are in it, in a sentence of a sensible length."""
    subject = re.search(rf"\b{re.escape(normal(point.subject))}\b", text) is not None
    return subject and point.figure in NUMBER.findall(text) and FEWEST_IN_POINT <= len(text.split()) <= MOST_IN_POINT


def normal(text: str) -> str:
    """Returns a text in lower case, white space collapsed, without a full stop at its end."""
    return " ".join(text.lower().split()).removesuffix(".")
