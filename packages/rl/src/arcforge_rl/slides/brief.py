"""Briefs: titles and points of decks, drawn at random, and the prompt that asks for it."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

from arcforge_core.errors import DataError
from arcforge_rl.slides.dialect import ACCEPTED, ELEMENTS

ORGANISATIONS = (
    "Harbour Library", "Northgate Museum", "Lindau Ferries", "Alder Valley Farms", "Mill Lane Clinic",
    "Stonebridge School", "Kestrel Bikes", "Fern Hill Bakery", "Orchard Street Theatre", "Bluewater Pool",
    "Castle Rock Observatory",
    "Eastfield Gardens", "Marlow Print Works", "Tidewater Ferries", "Pinewood Sawmill", "Cedar Falls Power",
    "Summit Rescue", "Riverside Market", "Lowland Trains", "Quarry Park Zoo",
)  # fmt: skip
OCCASIONS = ("annual review", "plan for spring", "report to the board", "results of the survey", "budget", "open day")
READERS = ("the board", "new staff", "the town council", "members", "the press", "sponsors")
SECTIONS = {
    "Visitors": ("Day tickets", "Season tickets", "School groups", "Evening visits", "Guided tours", "Online bookings"),
    "Money": ("Grants", "Ticket income", "Rent", "Wages", "Repairs", "Donations"),
    "Staff": ("Full-time posts", "Apprentices", "Volunteers", "Training days", "Sick days", "New contracts"),
    "Buildings": ("Roof panels", "New windows", "Parking spaces", "Ramps", "Fire doors", "Lamps replaced"),
    "Energy": ("Electricity use", "Heating oil", "Solar output", "Water use", "Waste sorted", "Night lighting"),
    "Plans": (
        "Extra opening hours",
        "Summer courses",
        "New displays",
        "Partner schools",
        "Bus connections",
        "Test runs",
    ),
}
FORMS = (
    "{subject} rose to {figure}", "{subject} fell to {figure}", "{subject} reached {figure} this year",
    "{subject} stayed at {figure}", "{subject} should reach {figure}", "{subject} came to {figure} in total",
)  # fmt: skip
UNITS = ("{}", "{}%", "{} a month", "{} per week")


@dataclass(frozen=True)
class Point:
    """A fact.

    Attributes:
        subject: words that name it.
        figure: number with its sign, which must appear as it is.
        text: the fact in a sentence.
    """

    subject: str
    figure: str
    text: str


@dataclass(frozen=True)
class PageBrief:
    """The contents of a page: a title, and points; the first page has a line of text instead."""

    title: str
    points: tuple[Point, ...] = ()
    line: str = ""


@dataclass(frozen=True)
class Brief:
    """The contents of a deck."""

    pages: tuple[PageBrief, ...]


def draw_brief(draw: random.Random, fewest: int, most: int, points: int) -> Brief:
    """Returns a brief.

    Args:
        draw: source of all randomness.
        fewest, most: pages, that of the title included.
        points: most on a page; at least 2.
    """
    organisation, occasion = draw.choice(ORGANISATIONS), draw.choice(OCCASIONS)
    pages = [PageBrief(f"{organisation}: {occasion}", line=f"For {draw.choice(READERS)}")]
    for section in draw.sample(sorted(SECTIONS), draw.randint(fewest, most) - 1):
        subjects = draw.sample(SECTIONS[section], draw.randint(2, points))
        pages.append(PageBrief(section, tuple(_point(draw, subject) for subject in subjects)))
    return Brief(tuple(pages))


def _point(draw: random.Random, subject: str) -> Point:
    number = draw.choice((draw.randint(11, 99), draw.randint(101, 999), draw.randint(1001, 9999)))
    unit = draw.choice(UNITS if number < 100 else (UNITS[0], *UNITS[2:]))
    figure = unit.format(f"{number:,}")
    bare = figure.split(" ")[0]
    return Point(subject, bare, draw.choice(FORMS).format(subject=subject, figure=figure))


def prompt_of(brief: Brief, rules: bool = True) -> str:
    """Returns the question for a brief, with the rules of decks or without them."""
    parts = []
    for number, page in enumerate(brief.pages, 1):
        said = [f"  - {point.text}" for point in page.points] or [f"  Line: {page.line}"]
        parts.append("\n".join([f"Page {number}. Title: {page.title}", *said]))
    asked = REQUEST.format(count=len(brief.pages), pages="\n".join(parts))
    return asked + RULES.format(elements=" ".join(ELEMENTS), properties=" ".join(ACCEPTED)) if rules else asked


def brief_of(prompt: str) -> Brief:
    """Returns the brief that a prompt asks for.

    Raises:
        DataError: it is no prompt of this environment.
    """
    pages: list[PageBrief] = []
    for line in prompt.splitlines():
        if found := re.fullmatch(r"Page \d+\. Title: (.+)", line):
            pages.append(PageBrief(found[1]))
        elif pages and line.startswith("  Line: "):
            pages[-1] = replace(pages[-1], line=line.removeprefix("  Line: "))
        elif pages and line.startswith("  - "):
            text = line.removeprefix("  - ")
            subject = next((one for one in SECTIONS.get(pages[-1].title, ()) if text.startswith(f"{one} ")), "")
            figure = re.search(r"\d[\d,]*%?", text)
            if subject and figure:
                pages[-1] = replace(pages[-1], points=(*pages[-1].points, Point(subject, figure[0], text)))
    brief = Brief(tuple(pages))
    if not pages or prompt not in (prompt_of(brief), prompt_of(brief, rules=False)):
        raise DataError(f"no prompt of environment=slides: {prompt[:60]!r}")
    return brief


REQUEST = """Write a deck of {count} slides as one HTML document. Reply with the document alone, in a block of ```html.

{pages}
"""
RULES = """
Rules:
- The document begins with its document type and has a head with a style element. Every element is closed.
- Each page is a section of class slide directly in the body: position relative, 1280px wide, 720px high.
- On a page every box is position absolute with left, top, width and height, lies within the page, and holds its text. \
Text in a box flows as blocks; texts do not overlap, and nothing is painted over them.
- Each title and each point is a paragraph, heading or list item of its own. A point keeps its subject and its figure; \
there are no other figures, nothing is said twice, and a page has at most 90 words.
- The title is the largest text of its page, in the upper half, and from page 2 on always at one place in one size. \
Text has at least 14px and a contrast of 4.5 with what it lies on, and keeps 32px from the edges; \
lines are at least 1.1 high.
- Fonts are sans-serif, serif, or common ones such as Arial and Georgia. Underlines are the only lines at text.
- Use at most 4 sizes and 6 colours on a page, at most 3 left edges of text, lines of at most 80 characters, and on \
every page a shape, coloured panel or ruled line besides the text. Leave no half of a page empty.
- Elements: {elements}. Properties: {properties}. Units: px, pt, em, rem, %. Nothing is loaded, hidden, cut, moved or \
computed: no scripts, variables, calc, at-rules, transforms, zoom or overflow.
"""
