"""Rules about pictures, which are painted here."""

import io

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("tinycss2")
pytest.importorskip("selectolax")

from arcforge_rl.slides.geometry import Rect
from arcforge_rl.slides.rendering.browser import Line, Rendered, Shown
from arcforge_rl.slides.rendering.pixels import largest_empty, luminance, seen

TEXT = Rect(200, 300, 400, 40)


def picture(shade=(255, 255, 255), *areas, size=(720, 1280)):
    pixels = np.full((*size, 3), shade, dtype=np.uint8)
    for left, top, wide, high, colour in areas:
        pixels[top : top + high, left : left + wide] = colour
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def stripes(rect, colour):
    left, top, wide, high = (int(part) for part in (rect.left, rect.top, rect.width, rect.height))
    return [(left + n, top + 5, 4, high - 10, colour) for n in range(0, wide, 12)]


def rules(data):
    texts = (Shown(1, (Line(TEXT, "Words"),), (), 1),)
    return {found.rule for found in seen(Rendered(((1280.0, 720.0),), (), texts, pictures=(data,)))}


FULL = [(x, y, 60, 4, (0, 0, 0)) for x in range(60, 1200, 160) for y in range(60, 700, 80)]


def test_a_good_picture():
    assert rules(picture((255, 255, 255), *FULL, *stripes(TEXT, (20, 20, 20)))) == set()


@pytest.mark.parametrize(
    ("rule", "data"),
    [
        ("unseen_text", picture((255, 255, 255), *FULL, (200, 290, 400, 60, (255, 255, 255)))),
        ("faint_text", picture((255, 255, 255), (200, 290, 400, 60, (255, 255, 255)), *stripes(TEXT, (180, 180, 180)))),
        ("seen_whitespace", picture((255, 255, 255), (0, 0, 1280, 20, (0, 0, 0)))),
        ("seen_whitespace", picture()),
        ("balance", picture((255, 255, 255), *stripes(Rect(20, 20, 300, 200), (0, 0, 0)))),
        ("seen_glare", picture((255, 0, 0), *FULL)),
        ("measured_16_9", picture(size=(700, 1280))),
    ],
)
def test_broken_rules(rule, data):
    assert rule in rules(data)


def test_the_largest_empty_rectangle():
    assert largest_empty(np.ones((3, 4), dtype=bool)) == 0
    assert largest_empty(np.zeros((3, 4), dtype=bool)) == 12
    full = np.zeros((4, 6), dtype=bool)
    full[1, 2] = True
    assert largest_empty(full) == 12  # three columns of four rows to its right, or two rows of six below


def test_luminance_is_that_of_the_standard():
    found = luminance(np.array([[[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]]))
    assert found[0] == pytest.approx([0.0, 1.0, 0.2126])
