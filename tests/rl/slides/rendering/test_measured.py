"""Rules about measures, which are made up here."""

from dataclasses import replace

import pytest

pytest.importorskip("tinycss2")
pytest.importorskip("selectolax")

from arcforge_rl.slides.geometry import PageLayout, Paragraph, Rect
from arcforge_rl.slides.markup import Element
from arcforge_rl.slides.rendering.browser import Line, Rendered, Shown
from arcforge_rl.slides.rendering.measured import measured

BOX = Rect(100, 100, 400, 200)


def shown(left=110.0, top=110.0, wide=90.0, high=30.0, text="Ten words", parent=5, around=(BOX,)):
    return Shown(1, (Line(Rect(left, top, wide, high), text),), around, parent)


def layout(*texts):
    page = PageLayout(Element("section", {}, None, page=1))
    page.paragraphs = [Paragraph(text, (), BOX, 0, (), ()) for text in texts]
    return page


GOOD = Rendered(((1280.0, 720.0),), ((1, BOX),), (shown(),))


def rules(rendered, *texts):
    return {finding.rule for finding in measured(rendered, [layout(*(texts or ("Ten words",)))])}


def test_a_good_page():
    assert rules(GOOD) == set()


@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        ("unrendered", {"flaw": "it ended with output_limit"}),
        ("requested", {"refused": 2}),
        ("measured_16_9", {"pages": ((1280.0, 721.0),)}),
        ("measured_off_canvas", {"boxes": ((1, Rect(1200, 0, 90, 9)),)}),
        ("measured_off_canvas", {"texts": (shown(left=1250, around=()),)}),
        ("measured_hidden", {"hidden": ((1, "Notes"),)}),
        ("measured_hidden", {"texts": (shown(wide=0),)}),
        ("measured_tiny", {"texts": (shown(high=6),)}),
        ("measured_overflow", {"texts": (shown(top=290),)}),
        ("measured_overflow", {"texts": (shown(around=(Rect(100, 100, 400, 10), BOX)),)}),
        ("measured_overlap", {"texts": (shown(), shown(left=150, parent=6))}),
        ("measured_differs", {"texts": (shown(text="Ten other words"),)}),
        ("measured_differs", {"pages": ()}),
    ],
)
def test_broken_rules(rule, changed):
    assert rule in rules(replace(GOOD, **changed))


def test_lines_of_one_element_may_touch_and_case_does_not_matter():
    two = (shown(text="TEN"), shown(top=125, text="words"))
    assert rules(replace(GOOD, texts=two)) == set()
