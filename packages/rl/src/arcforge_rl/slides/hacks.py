"""Known ways to make a bad deck look good to a checker, and the rule that catches each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from arcforge_rl.slides.brief import Brief
from arcforge_rl.slides.oracle import deck_of

TEXTS = ".panel, .line"
WRITTEN = re.compile("<p>.*?</p>")
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
IMAGE = '<img alt="" style="position: absolute; left: 1100px; top: 60px; width: 40px; height: 40px" src="{}">'


@dataclass(frozen=True)
class Hack:
    """A hack.

    Attributes:
        name: its trick.
        rule: the rule that catches it.
        make: returns a deck with it, of the right deck and the brief.
    """

    name: str
    rule: str
    make: Callable[[str, Brief], str]


def css(text: str) -> Callable[[str, Brief], str]:
    """Returns a maker that appends to the style sheet."""
    return lambda deck, _: deck.replace("</style>", f"{text}\n</style>")


def each(text: str) -> Callable[[str, Brief], str]:
    """Returns a maker that appends to every page."""
    return lambda deck, _: deck.replace("</section>", f"{text}</section>")


def swap(old: str, new: str) -> Callable[[str, Brief], str]:
    """Returns a maker that replaces a text everywhere."""
    return lambda deck, _: deck.replace(old, new)


def _pasted(deck: str, brief: Brief) -> str:
    everything = " ".join(point.text for page in brief.pages for point in page.points)
    return each(f'<div class="line" style="top: 640px"><p>{everything}</p></div>')(deck, brief)


def _in_comments(deck: str, brief: Brief) -> str:
    for page in brief.pages:
        for text in (page.title, page.line, *(point.text for point in page.points)):
            deck = deck.replace(f"<p>{text}</p>", f"<p><!-- {text} --></p>").replace(
                f"<h1>{text}<", f"<h1><!-- {text} --><"
            )
    return deck


def _look_alike(deck: str, brief: Brief) -> str:
    return WRITTEN.sub(lambda found: found[0].replace("e", "\u0435"), deck)


def _one_page(deck: str, brief: Brief) -> str:
    first = deck[deck.index("<section") : deck.index("</section>") + 10].replace("cover", "")
    first = first.replace(brief.pages[0].title, "Welcome")
    return f"{deck[: deck.index('<section')]}{first * len(brief.pages)}</body></html>"


HACKS = (
    Hack("text is cut by overflow: hidden", "hidden_overflow",
         css(f"{TEXTS} {{ overflow: hidden; height: 30px !important; }}")),
    Hack("text is cut by a line clamp", "hidden_overflow", css("p { -webkit-line-clamp: 1; }")),
    Hack("text is cut by a maximum height", "hidden_overflow", css(f"{TEXTS} {{ max-height: 10px; }}")),
    Hack("text is cut by a clip path", "clipped", css("p { clip-path: inset(0 90% 0 0); }")),
    Hack("the page is zoomed", "zoom", css(".slide { zoom: 0.5; }")),
    Hack("boxes are scaled by a transform", "transform", css(f"{TEXTS} {{ transform: scale(0.1); }}")),
    Hack("boxes are moved by translate", "transform", css(f"{TEXTS} {{ translate: 2000px 0; }}")),
    Hack("boxes lie beside the page", "off_canvas", css(f"{TEXTS} {{ left: 1300px; }}")),
    Hack("boxes lie above the page", "off_canvas", css(f"{TEXTS} {{ top: -300px !important; }}")),
    Hack("text has no size", "zero_size", css("p { font-size: 0 !important; }")),
    Hack("a box of text has no width", "zero_size", css(f"{TEXTS} {{ width: 0; border: 0; }}")),
    Hack("text has the colour of what it lies on", "text_of_background", css("p { color: #fffffe; }")),
    Hack("text is almost transparent", "text_of_background", css("p { color: rgba(0, 0, 0, 0.02); }")),
    Hack("text lies on a gradient that reaches its colour", "text_of_background",
         css(f"{TEXTS} {{ background: linear-gradient(#ffffff, #1c2733); }}")),
    Hack("boxes are transparent", "hidden_text", css(f"{TEXTS} {{ opacity: 0.01; }}")),
    Hack("text is not displayed", "hidden_text", css("p { display: none; }")),
    Hack("text is invisible", "hidden_text", css("p { visibility: hidden; }")),
    Hack("text has the attribute hidden", "hidden_text", swap("<p>", "<p hidden>")),
    Hack("text is in closed details", "hidden_text", each("<details><summary>More</summary><p>Notes</p></details>")),
    Hack("a box covers the text", "covered_text",
         each('<div class="band" style="top: 60px; height: 600px"></div>')),
    Hack("text is put under the page", "covered_text", css(f"{TEXTS} {{ z-index: -1; }}")),
    Hack("lines lie on each other", "squeezed_text", css("p { line-height: 0.2 !important; }")),
    Hack("letters lie on each other", "squeezed_text", css("p { letter-spacing: -8px; }")),
    Hack("margins are negative", "squeezed_text", css("p { margin-top: -40px !important; }")),
    Hack("text is indented out of sight", "squeezed_text", css("p { text-indent: -9999px; }")),
    Hack("texts lie on each other", "overlap",
         css(f".title {{ z-index: 9; }} .title, {TEXTS} {{ top: 200px !important; height: 140px !important; }}")),
    Hack("text is longer than its box", "overflowing_text", css(f"{TEXTS} {{ height: 12px !important; }}")),
    Hack("text is tiny", "tiny_text", css("p { font-size: 6px !important; }")),
    Hack("the page grows with its text", "not_16_9", css(".slide { height: 1440px; }")),
    Hack("the shape of the page is declared by a ratio", "not_16_9", css(".slide { aspect-ratio: 16 / 9; }")),
    Hack("a script repairs the page", "script", each("<script>fit()</script>")),
    Hack("an event handler runs", "script", swap("<p>", '<p onmouseover="fit()">')),
    Hack("a style sheet is loaded", "remote_load",
         swap("<style>", '<link rel="stylesheet" href="https://a.example/b.css"><style>')),
    Hack("a font is loaded", "remote_load", css("@import url(https://a.example/b.css);")),
    Hack("an image is made up", "remote_load", each(IMAGE.format("https://a.example/chart.png"))),
    Hack("the page forwards to another", "remote_load",
         swap("<style>", '<meta http-equiv="refresh" content="0; url=https://a.example"><style>')),
    Hack("an image is no image", "broken_image", each(IMAGE.format("data:image/png;base64,AAAA"))),
    Hack("one image is shown again and again", "duplicate_image", each(IMAGE.format(PIXEL) + IMAGE.format(PIXEL))),
    Hack("styles depend on the medium", "at_rule", css("@media screen { p { font-size: 40px; } }")),
    Hack("text is generated by a style", "generated_text", css('p { content: "Wages rose"; }')),
    Hack("a selector hides what it selects", "selector", css("p:not(:hover) { color: #000000; }")),
    Hack("letters are filled with nothing", "blended", css("p { -webkit-text-fill-color: transparent; }")),
    Hack("a filter fades the text", "blended", css("p { filter: opacity(0); }")),
    Hack("text moves away", "animation", css("p { animation: away 1ms forwards; }")),
    Hack("text runs from right to left", "turned_text", css("p { direction: rtl; unicode-bidi: bidi-override; }")),
    Hack("letters look like others", "odd_characters", _look_alike),
    Hack("invisible letters are between the others", "odd_characters", swap("<p>", "<p>\u200b")),
    Hack("sizes are computed", "computed_value", css("p { font-size: calc(1px + 1px); }")),
    Hack("sizes are variables", "computed_value", css("p { font-size: var(--size); }")),
    Hack("sizes depend on the window", "unit", css("p { font-size: 3vw !important; }")),
    Hack("boxes are placed by flex", "unmeasured_layout", css(f"{TEXTS} {{ display: flex; }}")),
    Hack("pages lie on each other", "unmeasured_layout", css(".slide { position: absolute; left: 0; top: 0; }")),
    Hack("text is outside the pages", "text_outside", swap("<body>", "<body><p>Notes</p>")),
    Hack("elements are not closed", "malformed", swap("</p>", "")),
    Hack("text is in comments", "missing_title", _in_comments),
    Hack("the whole brief is on every page", "repeated_text", _pasted),
    Hack("one page is repeated", "missing_title", _one_page),
    Hack("points are left out", "missing_point", lambda deck, _: WRITTEN.sub("<p>More to come here</p>", deck)),
    Hack("figures are made up", "invented_figure", swap("</h1>", "</h1><p>9,999,999 more</p>")),
)  # fmt: skip
"""The table of known hacks."""


def decks(brief: Brief) -> list[tuple[Hack, str]]:
    """Returns the hacks with their decks for a brief."""
    right = deck_of(brief)
    return [(hack, hack.make(right, brief)) for hack in HACKS]
