"""Where text lies by its font's widths."""

import pytest

pytest.importorskip("tinycss2")
pytest.importorskip("selectolax")

from arcforge_rl.slides.cascade import cascade
from arcforge_rl.slides.geometry import Rect
from arcforge_rl.slides.layout import lay_out
from arcforge_rl.slides.markup import read_markup
from arcforge_rl.slides.text import Font, TextRun, lines, width

FONT = Font(20.0, False, 24.0, 0.0, 0.0, (0.0, 0.0, 0.0, 1.0))
PAGE = """<!doctype html><html><head><style>p {{ margin: 0; line-height: 1.5 }}
.slide {{ position: relative; width: 1280px; height: 720px }} .box {{ position: absolute; left: 100px; top: 50px;
width: 400px; height: 300px }} {}</style></head><body><section class="slide">{}</section></body></html>"""


def page(body, css=""):
    markup = read_markup(PAGE.format(css, body))
    styles, findings = cascade(markup)
    assert not findings and not markup.findings, [*findings, *markup.findings]
    return lay_out(markup.pages[0], styles)


def test_widths_are_those_of_the_font():
    assert width("a", FONT) == pytest.approx(1255 / 2048 * 20)
    assert width("iii", FONT) < width("mmm", FONT) < width("mmm", Font(20.0, True, 24.0, 0.0, 0.0, FONT.colour))


def test_lines_break_between_words():
    run = TextRun("one two three", FONT)
    assert len(lines([run], 1000)) == 1
    room = width("one two", FONT) + 1
    assert [count for _, _, count in lines([run], room)] == [7, 5]
    assert [count for _, _, count in lines([run], 1)] == [3, 3, 5]
    assert [high for _, high, _ in lines([run, TextRun("\n", FONT), run], 1000)] == [24, 24]
    assert lines([TextRun(" ", FONT)], 9) == []


def test_blocks_follow_each_other_with_their_margins():
    layout = page("<div class='box'><p>a</p><p>b</p></div>", "p { margin: 10px 0 20px; padding: 5px }")
    tops = [paragraph.rect.top for paragraph in layout.paragraphs]
    assert tops == [50 + 10 + 5, 50 + 10 + 5 + 24 + 5 + 20 + 5]
    assert not layout.findings


def test_boxes_in_boxes_and_padding():
    layout = page(
        "<div class='box'><div class='box'><p>a</p></div></div>", ".box { padding: 7px; border: 3px solid #000 }"
    )
    assert layout.boxes[2][1] == Rect(203, 103, 420, 320)
    assert layout.paragraphs[0].rect.left == 213
    inner = page("<div class='box'><p>a</p></div>", ".box { padding: 7px; box-sizing: border-box }").boxes[1][1]
    assert inner == Rect(100, 50, 400, 300)


def test_right_and_centred_text_has_its_place():
    left, centre, right = (
        page("<div class='box'><p>abc</p></div>", f"p {{ text-align: {side} }}").paragraphs[0].rect
        for side in ("left", "center", "right")
    )
    assert left.left == 100 and right.right == pytest.approx(500) and left.left < centre.left < right.left


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("<p>a</p>", "unmeasured_layout"),
        ("<div class='box' style='width: auto'>a</div>", "unmeasured_layout"),
        ("<div class='box'><div style='position: relative; left: 900px'>a</div></div>", "unmeasured_layout"),
        ("<div class='box'><span style='padding: 9px'>a</span></div>", "unmeasured_layout"),
        ("<div class='box'><p style='height: 2px'>a</p></div>", "overflowing_text"),
        ("<div class='box'><p>" + "a" * 99 + "</p></div>", "overflowing_text"),
        ("<div class='box'>" + "<p>a</p>" * 13 + "</div>", "overflowing_text"),
    ],
)
def test_what_cannot_be_measured_or_does_not_fit(body, rule):
    assert rule in {finding.rule for finding in page(body).findings}


def test_twelve_lines_fit_into_300_px():
    assert not page("<div class='box'>" + "<p>a</p>" * 12 + "</div>").findings


def test_painting_order_follows_stacking_contexts():
    body = "<div class='box a'><div class='box'><p>a</p></div></div><div class='box'><p>b</p></div>"
    low, high = (paragraph.key for paragraph in page(body).paragraphs)
    assert low < high
    first, second = (one.key for one in page(body, ".a > .box { z-index: 2 }").paragraphs)
    assert first > second  # it takes part in the page's context
    first, second = (one.key for one in page(body, ".a { z-index: 0 } .a > .box { z-index: 2 }").paragraphs)
    assert first < second  # it is kept in its parent's
