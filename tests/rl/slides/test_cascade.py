"""Declarations as browsers would apply them."""

import pytest

pytest.importorskip("tinycss2")
pytest.importorskip("selectolax")

from arcforge_rl.slides.cascade import cascade
from arcforge_rl.slides.css import declarations, sheet
from arcforge_rl.slides.markup import read_markup

SHELL = "<!doctype html><html><head><style>{}</style></head><body>{}</body></html>"


def styled(css, body, tag="p"):
    """Returns the style of the last element of a tag, and the names of broken rules."""
    markup = read_markup(SHELL.format(css, body))
    styles, findings = cascade(markup)
    one = [element for element in styles if element.tag == tag][-1]
    return styles[one], {finding.rule for finding in findings}


@pytest.mark.parametrize(
    ("css", "body", "size"),
    [
        ("p { font-size: 20px } p { font-size: 30px }", "<p></p>", 30),
        ("#a { font-size: 20px } p { font-size: 30px }", "<p id='a'></p>", 20),
        (".a { font-size: 20px } div p { font-size: 30px }", "<div><p class='a'></p></div>", 20),
        ("p { font-size: 20px !important }", "<p style='font-size: 30px'></p>", 20),
        ("p { font-size: 20px }", "<p style='font-size: 30px'></p>", 30),
        ("div { font-size: 20px } p { font-size: 1.5em }", "<div><p></p></div>", 30),
        ("div { font-size: 20px } p { font-size: 150% }", "<div><p></p></div>", 30),
        ("p { font-size: 2rem }", "<p></p>", 32),
        ("p { font-size: 15pt }", "<p></p>", 20),
        ("div > p { font-size: 20px } div p { font-size: 25px }", "<div><b><p></p></b></div>", 25),
        ("p:first-child { font-size: 20px }", "<p></p><p></p>", 16),
        ("p, h1 { font-size: 20px }", "<p></p>", 20),
    ],
)
def test_sizes(css, body, size):
    assert styled(css, body)[0].font.size == pytest.approx(size)


def test_what_is_inherited_and_what_is_not():
    style, broken = styled(
        "div { color: #ff0000; background: #00ff00; line-height: 2; width: 9px }", "<div><p></p></div>"
    )
    assert style.font.colour == (1, 0, 0, 1) and style.backgrounds == () and style.font.line == 32
    assert style.px("width", 100) is None and not broken


def test_shorthands_and_lengths():
    style, _ = styled("p { margin: 1px 2px 3px; padding: 10%; border-left: 4px solid #fff }", "<p></p>")
    sides = [style.px(f"margin-{side}", 200) for side in ("top", "right", "bottom", "left")]
    assert sides == [1, 2, 3, 2] and style.px("padding-top", 200) == 20
    assert [wide for wide, _ in style.borders] == [0, 0, 0, 4]
    assert styled("", "<h1></h1>", "h1")[0].px("margin-top", 0) == pytest.approx(0.67 * 32)
    assert styled("p { border: 4px none #fff }", "<p></p>")[0].borders[0][0] == 0


@pytest.mark.parametrize(
    ("css", "rule"),
    [
        ("p { colour: red }", "unknown_property"),
        ("p { color: redd }", "malformed_css"),
        ("p { color red }", "malformed_css"),
        ("p { width: 3vw }", "unit"),
        ("p { width: calc(1px) }", "computed_value"),
        ("p { --a: 1 }", "computed_value"),
        ("p::before { color: red }", "selector"),
        ("p[a] { color: red }", "selector"),
        ("p { & b { color: red } }", "malformed_css"),
        ("@layer a { p { color: red } }", "at_rule"),
        ("p { background: url(data:a) }", "remote_load"),
        ("p { background: image-set('a' 1x) }", "remote_load"),
        ("p { font-size: -1px }", "malformed_css"),
        ("p { width: -1px }", "malformed_css"),
        ("p { all: unset }", "computed_value"),
        ("p { border: 300px solid #000 }", "unknown_property"),
        ("p { box-shadow: inset 0 0 0 900px #000 }", "unknown_property"),
        ("p { color: inherit }", "computed_value"),
        ("html { font-size: 1px }", "unit"),
        ("p { opacity: .1 }", "hidden_text"),
        ("p { position: fixed }", "unmeasured_layout"),
        ("p { line-height: 0 }", "squeezed_text"),
        ("p { float: left }", "unmeasured_layout"),
        ("p { color: color-mix(in srgb, red, red) }", "computed_value"),
    ],
)
def test_what_rules_refuse(css, rule):
    assert rule in styled(css, "<p>a</p>")[1]


@pytest.mark.parametrize("css", ["overflow: visible", "transform: none", "box-shadow: 0 4px 12px rgba(0, 0, 0, 0.2)"])
def test_what_changes_nothing_is_accepted(css):
    assert styled(f"p {{ {css} }}", "<p>a</p>")[1] == set()


def test_selectors_without_elements_break_no_rule():
    assert styled("h6 { transform: none; zoom: 3 }", "<p>a</p>")[1] == set()


def test_gradients_have_all_their_colours():
    style, _ = styled("p { background: linear-gradient(to right, red, #0000ff 50%, rgba(0, 0, 0, 0)) }", "<p></p>")
    assert style.backgrounds == ((1, 0, 0, 1), (0, 0, 1, 1), (0, 0, 0, 0))


def test_specificity():
    rules, faults = sheet("#a .b p:first-child > * { color: red }")
    assert rules[0].specificity == (1, 2, 1) and not faults
    assert [one.name for one in declarations("margin: 1px; color: red")][-1] == "color"
