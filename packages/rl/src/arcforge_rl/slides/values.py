"""Values of CSS as numbers: lengths in px, colours as red, green, blue and alpha in [0, 1]."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tinycss2.color4
from tinycss2.ast import Node

Colour = tuple[float, float, float, float]
"""Red, green, blue and alpha, each in [0, 1]."""
WHITE: Colour = (1.0, 1.0, 1.0, 1.0)
BLACK: Colour = (0.0, 0.0, 0.0, 1.0)
UNITS = {"px": 1.0, "pt": 4 / 3}
STEPS = 6
"""Between two stops of a gradient."""
LARGEST = 100_000
"""Of a number in a length."""


class Refused(ValueError):
    """A value that a rule refuses.

    Attributes:
        rule: its name.
    """

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(detail)
        self.rule = rule


def length(token: Node, em: float, rem: float, whole: float | None) -> float:
    """Returns a length in px.

    Args:
        token: the value.
        em: font size in px that ``em`` is of.
        rem: font size of the root in px.
        whole: px that per cents are of; None refuses them.

    Raises:
        Refused: it is no length, of another unit, or computed.
    """
    if token.type in ("number", "percentage", "dimension") and not abs(token.value) <= LARGEST:
        raise Refused("malformed_css", f"{token.serialize()[:40]} is beyond every page")
    if token.type == "number" and token.value == 0:
        return 0.0
    if token.type == "percentage":
        if whole is None:
            raise Refused("unit", f"{token.serialize()[:40]} of a size that is not given")
        return float(token.value) / 100 * whole
    if token.type == "dimension":
        unit = token.lower_unit
        if unit in UNITS:
            return float(token.value) * UNITS[unit]
        if unit in ("em", "rem"):
            return float(token.value) * (em if unit == "em" else rem)
        raise Refused("unit", f"{token.serialize()[:40]} is not in px, pt, em, rem or per cent")
    if token.type == "function":
        raise Refused("computed_value", f"{token.serialize()[:40]}")
    raise Refused("malformed_css", f"{token.serialize()[:40]} is no length")


def colour(token: Node, current: Colour) -> Colour:
    """Returns a colour.

    Args:
        token: the value.
        current: the meaning of ``currentcolor``.

    Raises:
        Refused: it is none.
    """
    if token.type == "function" and token.lower_name not in ("rgb", "rgba", "hsl", "hsla"):
        raise Refused("computed_value", f"{token.serialize()[:40]}")
    found = tinycss2.color4.parse_color(token)
    if found == "currentcolor":
        return current
    if found is None:
        raise Refused("malformed_css", f"{token.serialize()[:40]} is no colour")
    red, green, blue = (min(1.0, max(0.0, part or 0.0)) for part in found.to("srgb").coordinates)
    return red, green, blue, float(found.alpha)


def over(top: Colour, bottom: Colour) -> Colour:
    """Returns a colour painted over an opaque one."""
    alpha = top[3]
    red, green, blue = (alpha * a + (1 - alpha) * b for a, b in zip(top[:3], bottom[:3], strict=True))
    return red, green, blue, 1.0


def blends(stops: Sequence[Colour]) -> set[Colour]:
    """Returns the colours of a gradient: its stops, and some between neighbours."""
    parts = [n / STEPS for n in range(1, STEPS)]
    between = {
        (*(a + part * (b - a) for a, b in zip(first, second, strict=True)),)
        for first, second in itertools.pairwise(stops)
        for part in parts
    }
    return {*stops, *between}  # type: ignore[arg-type]


def contrast(first: Colour, second: Colour) -> float:
    """Returns the contrast of two opaque colours, from 1 to 21 (WCAG 2.2)."""
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(shade: Colour) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in shade[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def glaring(shade: Colour) -> bool:
    """Returns whether a colour is bright and saturated: of HSV, both above 0.85."""
    high, low = max(shade[:3]), min(shade[:3])
    return high > 0.85 and (high - low) / high > 0.85


def words(tokens: Sequence[Node]) -> list[Node]:
    """Returns the parts of a value, without white space and comments."""
    return [token for token in tokens if token.type not in ("whitespace", "comment")]
