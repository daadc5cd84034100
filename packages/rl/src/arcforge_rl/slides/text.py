"""Text without a browser: widths of DejaVu Sans, a wide font without serifs, and lines broken greedily."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from arcforge_rl.slides.values import Colour

FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")
"""Regular and bold; matplotlib brings them."""
OTHER = 1.0
"""Width of a character that the font lacks, in em."""
CASES: dict[str, Callable[[str], str]] = {"uppercase": str.upper, "lowercase": str.lower, "capitalize": str.title}
NORMAL = 1.2
"""Line height in em where none is given; that of DejaVu Sans is 1.16."""


@dataclass(frozen=True)
class Font:
    """How a text is written.

    Attributes:
        size: in px.
        bold: whether it is.
        line: height of a line in px.
        spacing: between letters, in px.
        gap: between words in addition, in px.
        case: value of ``text-transform``.
        colour: of the text, whose alpha includes the opacity of its elements.
    """

    size: float
    bold: bool
    line: float
    spacing: float
    gap: float
    colour: Colour
    case: str = "none"


@dataclass(frozen=True)
class TextRun:
    """A piece of text in one font; a line break is a run of the text ``\\n``."""

    text: str
    font: Font


@functools.cache
def widths(bold: bool) -> dict[str, float]:
    """Returns the advance widths of characters, in em."""
    import matplotlib
    from fontTools.ttLib import TTFont

    with TTFont(Path(matplotlib.get_data_path(), "fonts/ttf", FONTS[bold]), lazy=True) as font:
        advances, em = font["hmtx"], font["head"].unitsPerEm
        return {chr(code): advances[name][0] / em for code, name in font.getBestCmap().items()}


def width(text: str, font: Font) -> float:
    """Returns the width of a text on one line, in px."""
    known, text = widths(font.bold), CASES.get(font.case, str)(text)
    return sum(known.get(c, OTHER) for c in text) * font.size + len(text) * font.spacing + text.count(" ") * font.gap


def lines(runs: Sequence[TextRun], room: float, indent: float = 0.0) -> list[tuple[float, float, int]]:
    """Breaks runs into lines.

    Args:
        runs: of one paragraph, white space collapsed.
        room: width of a line in px.
        indent: of the first line, in px.

    Returns:
        Width, height in px and characters of each line. A word wider than `room` makes a line of its own width.
    """
    found: list[tuple[float, float, int]] = []
    at, high, count, space = indent, 0.0, 0, 0.0
    for run in runs:
        if run.text == "\n":
            found.append((at, max(high, run.font.line), count))
            at, high, count, space = 0.0, 0.0, 0, 0.0
            continue
        for n, word in enumerate(run.text.split(" ")):
            if n:
                space = width(" ", run.font)
            if not word:
                continue
            wide = width(word, run.font)
            if count and space and at + space + wide > room:
                found.append((at, high, count))
                at, high, count = 0.0, 0.0, 0
            at += wide + (space if count else 0.0)
            count += len(word) + (1 if space and count else 0)
            high, space = max(high, run.font.line), 0.0
    return [*found, (at, high, count)] if count else found
