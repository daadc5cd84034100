"""The named rules of decks, and what breaking one costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cost(StrEnum):
    """The price of a broken rule."""

    DECK = "deck"
    """The whole deck scores 0: the rule is about tricks, which no honest deck needs."""
    PAGE = "page"
    """Its page scores 0, or all pages where it is about the whole deck."""
    GRADE = "grade"
    """Its page loses one of its grades."""


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        name: in findings and figures.
        cost: of breaking it.
        says: the duty of a deck, in one clause.
        level: 1 for markup and styles, 2 for measures of a browser, 3 for pictures.
    """

    name: str
    cost: Cost
    says: str
    level: int = 1


@dataclass(frozen=True)
class Finding:
    """A broken rule.

    Attributes:
        rule: its name.
        page: number from 1; None: the whole deck.
        detail: where and how, in words.
    """

    rule: str
    page: int | None
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}{'' if self.page is None else f' on page {self.page}'}: {self.detail}"


_TABLE = (
    (Cost.DECK, "script", "has no scripts, event handlers or script addresses"),
    (Cost.DECK, "remote_load", "loads nothing: images are data addresses"),
    (Cost.DECK, "hidden_overflow", "cuts nothing: no overflow other than visible, no line clamps or maximum sizes"),
    (Cost.DECK, "clipped", "clips and masks nothing"),
    (Cost.DECK, "zoom", "has no zoom"),
    (Cost.DECK, "transform", "has no transforms"),
    (Cost.DECK, "hidden_text", "hides nothing: no display none, visibility, hidden elements or low opacity"),
    (Cost.DECK, "zero_size", "has no text below 2 px and no box of text without area"),
    (Cost.DECK, "text_of_background", "has no text whose colour is nearly that of what it lies on"),
    (Cost.DECK, "generated_text", "generates no text by CSS"),
    (Cost.DECK, "blended", "has no filters, blending or text fills"),
    (Cost.DECK, "animation", "moves nothing"),
    (Cost.DECK, "odd_characters", "has no invisible, turned or look-alike characters"),
    (Cost.DECK, "text_outside", "has no text outside its pages"),
    (Cost.DECK, "too_large", "has at most 120,000 characters and 1,000 elements, 30 inside one another"),
    (Cost.PAGE, "malformed", "is well-formed: a document type, all elements closed, none that moves when it is parsed"),
    (Cost.PAGE, "malformed_css", "has valid declarations alone"),
    (Cost.PAGE, "foreign_element", "consists of the listed elements and attributes"),
    (Cost.PAGE, "unknown_property", "uses the listed properties"),
    (Cost.PAGE, "selector", "selects by element, class, identifier and nesting"),
    (Cost.PAGE, "at_rule", "has no at-rules: no media, imports, fonts, layers"),
    (Cost.PAGE, "computed_value", "gives plain values: no variables, no functions except of colours"),
    (Cost.PAGE, "unit", "measures in px, pt, em, rem or per cent"),
    (Cost.PAGE, "turned_text", "writes from left to right and from top to bottom"),
    (Cost.PAGE, "unmeasured_layout", "places boxes absolutely, with left, top, width and height"),
    (Cost.PAGE, "squeezed_text", "has no negative margins, indents or letter spacing, and lines of at least 1.1"),
    (Cost.PAGE, "page_count", "has as many pages as asked"),
    (Cost.PAGE, "not_16_9", "has pages of 1280 by 720 px"),
    (Cost.PAGE, "off_canvas", "keeps every box on its page"),
    (Cost.PAGE, "overflowing_text", "has boxes that hold their text"),
    (Cost.PAGE, "overlap", "has no two texts over each other"),
    (Cost.PAGE, "covered_text", "paints nothing over text"),
    (Cost.PAGE, "tiny_text", "has text of at least 14 px"),
    (Cost.PAGE, "contrast", "has text with a contrast of 4.5, or 3 from 24 px"),
    (Cost.PAGE, "broken_image", "has images that can be decoded"),
    (Cost.PAGE, "duplicate_image", "shows no image twice"),
    (Cost.PAGE, "missing_title", "has each page's title as a text of its own"),
    (Cost.PAGE, "missing_point", "has each point, with its subject and its figure, in a text of its own"),
    (Cost.PAGE, "invented_figure", "has no figures that the brief does not give for the page"),
    (Cost.PAGE, "repeated_text", "says nothing twice on a page"),
    (Cost.PAGE, "stuffed", "has at most 90 words on a page and 25 in a point"),
    (Cost.GRADE, "margins", "keeps text 32 px away from the edges"),
    (Cost.GRADE, "hierarchy", "has a title that is larger than every other text and in the upper half"),
    (Cost.GRADE, "type_sizes", "has at most 4 sizes of text on a page"),
    (Cost.GRADE, "palette", "has at most 6 colours on a page"),
    (Cost.GRADE, "saturation", "covers at most 40% of a page with a glaring colour"),
    (Cost.GRADE, "alignment", "aligns its texts on at most 3 left edges"),
    (Cost.GRADE, "line_length", "has lines of at most 80 characters"),
    (Cost.GRADE, "whitespace", "covers between 4% and 60% of a page with text, and no half of a page is empty"),
    (Cost.GRADE, "consistency", "has its titles, except the first page's, at one place and in one size"),
    (Cost.GRADE, "structure", "has at least two boxes on a page, and something besides text"),
)  # fmt: skip
_RENDERED = (
    (2, Cost.PAGE, "unrendered", "can be shown by a browser within its limits"),
    (2, Cost.DECK, "requested", "makes the browser ask for nothing"),
    (2, Cost.PAGE, "measured_16_9", "has pages of 1280 by 720 px in a browser"),
    (2, Cost.PAGE, "measured_off_canvas", "has no box and no line of text that leaves its page"),
    (2, Cost.DECK, "measured_hidden", "has no text without a visible line"),
    (2, Cost.PAGE, "measured_tiny", "has no line of text lower than 14 px"),
    (2, Cost.PAGE, "measured_overflow", "has no line of text that leaves an element that it is in"),
    (2, Cost.PAGE, "measured_overlap", "has no two lines of text over each other"),
    (2, Cost.DECK, "measured_differs", "shows the text of its markup"),
    (3, Cost.DECK, "unseen_text", "has no text whose pixels are nearly of one lightness"),
    (3, Cost.PAGE, "faint_text", "has text whose pixels differ in lightness by 2.5 or more"),
    (3, Cost.GRADE, "seen_whitespace", "has no empty rectangle on more than 55% of a page"),
    (3, Cost.GRADE, "balance", "has the middle of its contents within a quarter of the page from the page's"),
    (3, Cost.GRADE, "seen_glare", "has glaring pixels on at most 40% of a page"),
)  # fmt: skip
RULES = {name: Rule(name, cost, says) for cost, name, says in _TABLE}
RULES |= {name: Rule(name, cost, says, level) for level, cost, name, says in _RENDERED}
"""Name -> rule."""


def grades(level: int) -> list[str]:
    """Returns the names of the rules whose kept share a page scores, up to a level."""
    return [name for name, rule in RULES.items() if rule.cost is Cost.GRADE and rule.level <= level]
