"""The cost of one mistake, and documents that are no decks."""

import time

import pytest

from arcforge_rl.slides.rules import RULES, grades

GRADES = grades(1)
judging = pytest.importorskip("arcforge_rl.slides.judge")


def names(verdict):
    return {finding.rule for finding in verdict.findings}


def css(deck, text):
    return deck.replace("</style>", f"{text}</style>")


def test_a_defect_costs_its_page_alone(deck, brief, found):
    point = brief.pages[2].points[0].text
    verdict = found(deck.replace(point, "Nothing to see on this page"))
    assert verdict.pages == (1.0, 1.0, 0.0, 1.0) and names(verdict) == {"missing_point"}


def test_missing_pages_earn_nothing_and_extra_ones_cost_all(deck, found):
    start, end = deck.rindex("<section"), deck.rindex("</section>") + 10
    assert found(deck[:start] + deck[end:]).pages == (1.0, 1.0, 1.0, 0.0)
    assert found(deck[:end] + deck[start:end] + deck[end:]).score == 0.0


def test_points_may_be_put_in_own_words(deck, brief, found):
    point = brief.pages[1].points[0]
    assert (
        found(deck.replace(point.text, f"This year the {point.subject.lower()} came out at {point.figure}!")).score == 1
    )
    assert found(deck.replace(point.text, f"{point.subject} {point.figure}")).pages[1] == 0.0


def test_page_numbers_are_no_invented_figures(deck, found):
    number = '<div class="line" style="top: 650px; height: 36px"><p>{}</p></div></section>'
    parts = deck.split("</section>")
    right = "".join(part + number.format(f"{n} / 4") for n, part in enumerate(parts[:-1], 1)) + parts[-1]
    assert "invented_figure" not in names(found(right))
    assert "invented_figure" in names(found(right.replace("2 / 4", "7 / 4")))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("margins", ".line, .panel { left: 2px; } .line { padding-left: 2px; }"),
        ("hierarchy", "p { font-size: 60px !important; padding: 0 !important; }"),
        ("saturation", ".slide { background: #ff0000; } .panel { background: #ffffff; }"),
        ("structure", ".band, .panel { background: none; } .panel { border: none; }"),
        ("line_length", "p { font-size: 14px !important; } .panel p { letter-spacing: 0; }"),
        (
            "whitespace",
            ".title { top: 40px !important; } h1 { font-size: 20px !important; } .line, .panel { top: 80px; }",
        ),
        ("consistency", ".title h1 { text-align: right; }"),
    ],
)
def test_grades(rule, text, deck, brief, found):
    if rule == "line_length":
        point = brief.pages[1].points[0]
        deck = deck.replace(point.text, point.text + " and so on" * 7)
    verdict = found(css(deck, text))
    assert rule in names(verdict), verdict.reason
    assert RULES[rule].name in GRADES
    page = next(finding.page for finding in verdict.findings if finding.rule == rule)
    broken = {f.rule for f in verdict.findings if f.page == page}
    if broken <= {*GRADES}:
        assert verdict.pages[page - 1] == pytest.approx(1 - len(broken) / len(GRADES))


@pytest.mark.parametrize(
    ("rule", "addition"),
    [
        ("type_sizes", "".join(f"<p style='font-size: {n}px'>Word {chr(97 + n)}</p>" for n in range(16, 20))),
        ("palette", "".join(f"<p style='color: #{n}{n}0000'>Word {chr(107 + n)}</p>" for n in range(7))),
        ("alignment", "".join(f"<p style='margin-left: {n}px'>Word {chr(97 + n // 9)}</p>" for n in range(9, 60, 9))),
    ],
)
def test_grades_of_additions(rule, addition, deck, found):
    box = f'<div style="position: absolute; left: 700px; top: 160px; width: 400px; height: 300px">{addition}</div>'
    assert rule in names(found(deck.replace("</section>", f"{box}</section>", 1)))


def test_contrast_is_that_of_what_lies_below(deck, found):
    assert names(found(css(deck, ".panel p { color: #999999; }"))) == {"contrast"}
    assert not names(found(css(deck, ".panel { background: #102030; } .panel p { color: #eeeeee; }")))
    assert "text_of_background" in names(found(css(deck, ".panel { background: #1c2733; }")))
    half = "background: linear-gradient(to right, #ffffff, rgba(255, 255, 255, 0.9));"
    assert not names(found(css(deck, f".panel {{ {half} }}")))


@pytest.mark.parametrize(
    "text",
    [
        "", "a deck", "```html\n```", "<!doctype html>", "<section class=slide>", "```html\n<p>\n```", "\0" * 99,
        "<!doctype html><html><head></head><body></body></html>",
    ],
)  # fmt: skip
def test_no_deck(text, found):
    assert found(judging.document_of(text)).score == 0.0


def test_one_block_is_the_answer(deck):
    block = f"```html\n{deck}\n```"
    assert judging.document_of(f"Here it is.\n{block}\nDone.") == deck.strip() == judging.document_of(deck)
    assert judging.document_of(f"{block}\n{block}") == "" == judging.document_of(f"{block}\n```css\na\n```")


def test_what_is_too_large_earns_nothing(deck, found):
    for text in ("<div>" * 5_000, "<style>" + "* { color: red; }" * 6_000 + "</style>", "<br>" * 2_000, " " * 200_000):
        verdict = found(deck.replace("</head>", f"{text}</head>"))
        assert "too_large" in names(verdict) and verdict.score == 0.0


@pytest.mark.parametrize(
    "bomb",
    [
        lambda deck: deck.replace("<body>", "<body>" + "<div>" * 5_000),
        lambda deck: deck.replace("</style>", "* { color: red; }" * 6_000 + "</style>"),
        lambda deck: deck.replace("</style>", "* * * * * * { color: red; }" * 900 + "</style>"),
        lambda deck: deck.replace("</style>", "(" * 50_000 + "</style>"),
        lambda deck: deck.replace("</section>", "<p>a</p>" * 900 + "</section>", 1),
        lambda deck: deck.replace("<p>", f'<p style="{"margin: 1px;" * 5_000}">', 1),
        lambda deck: deck + " " * 50_000_000,
        lambda deck: deck.replace("</style>", "p { width: 1e999px; margin: 9e99em; }</style>"),
        lambda deck: deck.replace("<p>", "<p>" + "a" * 90_000, 1),
    ],
    ids=["depth", "rules", "selectors", "brackets", "elements", "declarations", "50 MB", "numbers", "word"],
)
def test_bombs_end_soon(bomb, deck, found):
    start = time.process_time()
    found(bomb(deck))
    assert time.process_time() - start < 4
