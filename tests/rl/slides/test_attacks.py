"""Decks that look right to one reader of HTML and not to another, and documents made to stop a judge."""

import re
import time

import pytest

pytest.importorskip("arcforge_rl.slides.judge")
from arcforge_rl.slides.text import Font, width
from arcforge_rl.slides.values import BLACK

COVER = "position: absolute; left: 0; top: 0; width: 1280px; height: 4000px; background: #f7f5f0"
OVER = "position: absolute; left: 60px; top: 60px; width: 1160px; height: 120px; z-index: 0; background: #f7f5f0"
BAND = '<div class="band"></div>'
HALVES = "".join(
    f'<div style="position: absolute; left: {80 + 8 * n}px; top: 190px; width: 40px; height: 40px; '
    f'background: rgba({n}, {3 * n}, {5 * n}, 0.5)"></div>'
    for n in range(40)
)


def css(text):
    return lambda deck: deck.replace("</style>", f"{text}</style>")


def named_sheets(deck):
    """Browsers use the first of two sheets that have titles."""
    return (
        deck.replace("</style>", ".panel p { color: #ffffff; }</style>")
        .replace("<style>", '<style title="a">')
        .replace("</head>", '<style title="b">.panel p { color: #1c2733; }</style></head>')
    )


def capitals(deck):
    """The titles of later pages fit their boxes in lower case."""
    font = Font(44, True, 52, 0, 0, BLACK)
    wide = max(width(title, font) for title in re.findall("<h1>([^<:]+)</h1>", deck))
    return css(f".title {{ width: {wide + 4}px; }} h1 {{ text-transform: uppercase; }}")(deck)


BLIND = {
    "a sheet with a title of its own": named_sheets,
    "a dark page without a background": lambda deck: deck.replace("background: #f7f5f0;", "").replace(
        "body {", "body { background: #1c2733;"
    ),
    "the root's background": css(".slide { background: none; } html { background: #1c2733; }"),
    "a body out of sight": css("body { position: absolute; left: -9000px; top: 0; }"),
    "a cover outside the pages": lambda deck: deck.replace("</body>", f'<div style="{COVER}"></div></body>'),
    "blocks between the pages": lambda deck: deck.replace("<section", "<p></p><hr><section"),
    "browsers' dark colours": lambda deck: deck.replace(
        "<head>", '<head><meta name="color-scheme" content="dark">'
    ).replace("background: #f7f5f0;", ""),
    "lines through text": css(".panel p { text-decoration: line-through solid #ffffff 40px; }"),
    "a fractional z-index": lambda deck: css(".title { z-index: 1.5; }")(deck).replace(
        "</section>", f'<div style="{OVER}"></div></section>'
    ),
    "two words for a position": css(".panel { position: absolute static; }"),
    "two words for a display": css(".panel { display: block inline; }"),
    "capitals that do not fit": capitals,
    "a font of symbols": css("body { font-family: Wingdings; }"),
    "a wide font": css("p { font-family: monospace; }"),
    "white text beside a round panel": css(
        ".panel { background: #1c2733; border-radius: 50%; } .panel p { color: #f7f5f0; }"
    ),
    "grey between black and white": css(
        ".panel { background: linear-gradient(90deg, #000000, #ffffff); } .panel p { color: #767676; }"
    ),
    "text as list marks": lambda deck: deck.replace("<p>", "<ul><li>").replace("</p>", "</li></ul>").replace(
        "</style>", '.panel ul { margin: 0; font-size: 24px; list-style-type: "Profit doubled. "; } </style>'
    ),
    "an indent off the page": css(".panel p { text-indent: 1400px; }"),
    "a font weight that is none": css(".panel p { font-weight: 5000; }"),
}  # fmt: skip


@pytest.mark.parametrize("name", BLIND)
def test_decks_that_browsers_show_otherwise_earn_nothing(name, deck, found):
    changed = BLIND[name](deck)
    verdict = found(changed)
    assert changed != deck and verdict.findings, name
    assert min(verdict.pages[1:]) == 0.0, (name, verdict.pages, verdict.reason)


STOPS = ",".join(f"rgba({n % 256}, {n // 256}, 0, 0.5)" for n in range(2_000))
STOPPERS = {
    "half-transparent boxes over text": lambda deck: deck.replace(BAND, f"{BAND}{HALVES}"),
    "formatting that every block opens again": lambda deck: deck.replace(
        "<body>", "<body>" + "".join(f"<p><b id=b{n}></p>" for n in range(450))
    ),
    "the same, thousands of times": lambda deck: deck.replace(
        "<body>", "<body>" + "".join(f"<p><b id=b{n}></p>" for n in range(4_000))
    ),
    "brackets in a selector": css("(" * 20_000),
    "closed brackets in a selector": css("(" * 20_000 + ")" * 20_000 + " {}"),
    "functions in a value": css("p { width: " + "a(" * 20_000 + "; }"),
    "closed functions in a value": css("p { width: " + "a(" * 10_000 + ")" * 10_000 + "; }"),
    "braces": css("{" * 50_000),
    "descendants": lambda deck: deck.replace(
        "<body>", "<body>" + "<div>" * 24 + "</div>" * 24
    ).replace("</style>", ("div " * 24 + "p {color: red}") * 300 + "</style>"),
    "angle brackets": lambda deck: "<" * 119_000,
    "open comments": lambda deck: deck.replace("<body>", "<body>" + "<!--" * 25_000),
    "open attributes": lambda deck: deck.replace("<body>", '<body><a b="' * 9_000),
    "open tags": lambda deck: deck.replace("<body>", "<a " * 35_000),
    "declarations": lambda deck: deck.replace("<body>", "<![CDATA[" * 12_000),
    "questions": lambda deck: deck.replace("<body>", "<?" * 50_000),
    "ampersands": lambda deck: deck.replace("<body>", "<body>" + "&" * 100_000),
    "long entities": lambda deck: deck.replace("<body>", "<body>&#" + "9" * 100_000 + ";"),
    "digits": css(".panel { left: " + "9" * 100_000 + "px; }"),
    "a word": lambda deck: deck.replace("<h1>", "<h1>" + "w" * 100_000, 1),
    "one paragraph": lambda deck: deck.replace("<h1>", "<h1>" + "w 1 " * 25_000, 1),
    "stops of gradients": css(f".panel, .band {{ background: linear-gradient({STOPS}) }}"),
    "shadows": css(".panel { box-shadow: " + "1px " * 20_000 + "; }"),
}  # fmt: skip


@pytest.mark.parametrize("name", STOPPERS)
def test_documents_that_cost_much_earn_nothing_soon(name, deck, found):
    start = time.process_time()
    verdict = found(STOPPERS[name](deck))
    assert min(verdict.pages) < 1.0
    assert time.process_time() - start < 3.0, name


def test_a_shape_that_nobody_sees_is_no_structure(deck, found):
    verdict = found(css(".band, .panel { background: rgba(0, 0, 0, 0.002); border: none; }")(deck))
    assert "structure" in {finding.rule for finding in verdict.findings}


@pytest.mark.parametrize(
    "text",
    [
        "body { font-family: 'Segoe UI', Arial, sans-serif; padding: 0; background: #f7f5f0; }",
        "html, body { margin: 0; background: #223344; }",
        ".panel { border-radius: 12px; } h1 { text-transform: uppercase; font-size: 40px !important; }",
        ".band { background: linear-gradient(90deg, #1f5673, #7a3b2e); z-index: 3; } a { text-decoration: none; }",
    ],
)
def test_honest_decks_keep_their_marks(text, deck, found):
    verdict = found(css(text)(deck))
    assert verdict.score == 1.0, verdict.reason
