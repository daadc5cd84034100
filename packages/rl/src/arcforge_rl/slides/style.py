"""The style of an element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinycss2.ast import Node

from arcforge_rl.slides.text import NORMAL, Font
from arcforge_rl.slides.values import BLACK, Colour, length

SIZES = ("left", "top", "width", "height")
ROOT_SIZE = 16.0
"""Font size of the root in px, which no deck may change."""


@dataclass(frozen=True)
class Style:
    """The result of an element's declarations; lengths in px.

    Attributes:
        font: of its text.
        line: factor or px of its line height, which children inherit as it is.
        display, position: words.
        backgrounds: colours of its background, of which a gradient has several; empty for none.
        opacity: product of its own and its ancestors'.
        z: its place in its stacking context; None: its parent's context.
        border_box: whether width and height include padding and borders.
        borders: widths, and their colours, on the four sides.
        radii: tokens of the lengths of its round corners.
        indent: of the first line.
        align: of its lines.
        values: tokens of lengths that depend on the surrounding box: those of `SIZES`, margins and paddings.
    """

    font: Font
    line: tuple[str, float] = ("factor", NORMAL)
    display: str = "inline"
    position: str = "static"
    backgrounds: tuple[Colour, ...] = ()
    opacity: float = 1.0
    z: int | None = None
    border_box: bool = False
    borders: tuple[tuple[float, Colour], ...] = ((0.0, BLACK),) * 4
    radii: tuple[Node, ...] = ()
    indent: float = 0.0
    align: str = "left"
    values: Mapping[str, Node | float] = field(default_factory=dict)

    def px(self, name: str, whole: float | None, default: float | None = None) -> float | None:
        """Returns a length, of which per cents are of `whole`; `default` where it is not given.

        Raises:
            Refused: it is not a usable one.
        """
        value = self.values.get(name)
        if value is None or isinstance(value, float):
            return default if value is None else value
        if value.type == "ident" and value.lower_value == "auto":
            return default
        return length(value, self.font.size, ROOT_SIZE, whole)


ROOT = Style(Font(ROOT_SIZE, False, ROOT_SIZE * NORMAL, 0.0, 0.0, BLACK))
