"""Computed values: browsers' own styles, inheritance, and declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tinycss2.ast import Node

from arcforge_rl.slides.markup import Element
from arcforge_rl.slides.properties import WIDEST_BORDER
from arcforge_rl.slides.style import ROOT_SIZE, SIZES, Style
from arcforge_rl.slides.text import NORMAL
from arcforge_rl.slides.values import Colour, Refused, colour, length

HEADINGS = {
    "h1": (2.0, 0.67),
    "h2": (1.5, 0.83),
    "h3": (1.17, 1.0),
    "h4": (1.0, 1.33),
    "h5": (0.83, 1.67),
    "h6": (0.67, 2.33),
}
"""Size and margin in em that browsers give."""
BOLD = ("h1", "h2", "h3", "h4", "h5", "h6", "b", "strong")
HIGHEST = 10_000
"""Z-index."""
MOST_STOPS = 6
"""Of a gradient."""
INLINE = ("span", "b", "strong", "i", "em", "br", "img")


def computed(element: Element, above: Style, given: Mapping[str, Sequence[Node]]) -> tuple[Style, list[Refused]]:
    """Returns the style of an element, and what its declarations get wrong."""
    faults: list[Refused] = []
    style = _of_browsers(element, above)
    for step in (_font, _inherited, _box):
        for name, tokens in given.items():
            try:
                style = step(style, above, name, tokens)
            except Refused as fault:
                faults.append(fault)
        if step is _font and element.tag in HEADINGS | {"p": 0, "ul": 0, "ol": 0}.keys():
            em = style.font.size * HEADINGS.get(element.tag, (1.0, 1.0))[1]
            style = replace(style, values={"margin-top": em, "margin-bottom": em, **style.values})
    kind, amount = style.line
    line = amount * style.font.size if kind == "factor" else amount
    if line < 1.1 * style.font.size - 0.01:
        faults.append(Refused("squeezed_text", f"a line of {line:g} px for text of {style.font.size:g} px"))
    return replace(style, font=replace(style.font, line=line)), faults


def _of_browsers(element: Element, above: Style) -> Style:
    size = above.font.size * HEADINGS.get(element.tag, (1.0, 1.0))[0]
    font = replace(above.font, size=size, bold=above.font.bold or element.tag in BOLD)
    display = "inline" if element.tag in INLINE else "list-item" if element.tag == "li" else "block"
    values: dict[str, Node | float] = {"padding-left": 40.0} if element.tag in ("ul", "ol") else {}
    return Style(
        font, above.line, display, opacity=above.opacity, indent=above.indent, align=above.align, values=values
    )


def _one(tokens: Sequence[Node], name: str) -> Node:
    if len(tokens) != 1:
        raise Refused("malformed_css", f"{name}: {' '.join(token.serialize() for token in tokens)}"[:80])
    return tokens[0]


def _word(tokens: Sequence[Node], name: str, *accepted: str) -> str:
    token = _one(tokens, name)
    if token.type != "ident" or token.lower_value not in accepted:
        raise Refused("malformed_css", f"{name}: {token.serialize()}"[:80])
    return str(token.lower_value)


def _number(tokens: Sequence[Node], name: str) -> float:
    token = _one(tokens, name)
    if token.type not in ("number", "percentage"):
        raise Refused("malformed_css", f"{name}: {token.serialize()}"[:80])
    return float(token.value) / (100 if token.type == "percentage" else 1)


def _font(style: Style, above: Style, name: str, tokens: Sequence[Node]) -> Style:
    if name == "font-size":
        size = length(_one(tokens, name), above.font.size, ROOT_SIZE, above.font.size)
        if size < 0:
            raise Refused("malformed_css", f"font-size: {size:g} px")
        return replace(style, font=replace(style.font, size=size))
    if name == "color":
        return replace(style, font=replace(style.font, colour=colour(_one(tokens, name), above.font.colour)))
    return style


def _inherited(style: Style, above: Style, name: str, tokens: Sequence[Node]) -> Style:
    font, em = style.font, style.font.size
    if name == "font-weight":
        token = _one(tokens, name)
        if token.type == "number" and not 1 <= token.value <= 1000:
            raise Refused("malformed_css", f"font-weight: {token.value:g}")
        bold = token.value >= 600 if token.type == "number" else _word(tokens, name, "bold", "normal") == "bold"
        return replace(style, font=replace(font, bold=bold))
    if name == "line-height":
        token = _one(tokens, name)
        if token.type == "ident":
            _word(tokens, name, "normal")
            return replace(style, line=("factor", NORMAL))
        factor = token.type == "number"
        return replace(style, line=("factor", token.value) if factor else ("px", length(token, em, ROOT_SIZE, em)))
    if name in ("letter-spacing", "word-spacing", "text-indent"):
        normal = tokens[0].type == "ident" and tokens[0].lower_value == "normal"
        amount = 0.0 if normal else length(_one(tokens, name), em, ROOT_SIZE, None)
        if amount < -0.03 * em:
            raise Refused("squeezed_text", f"{name}: {amount:g} px")
        if name == "text-indent":
            return replace(style, indent=amount)
        wider = replace(font, spacing=amount) if name == "letter-spacing" else replace(font, gap=amount)
        return replace(style, font=wider)
    if name == "text-align":
        return replace(style, align=_word(tokens, name, "left", "right", "center", "justify", "start", "end"))
    if name == "text-transform":
        case = _word(tokens, name, "none", "uppercase", "lowercase", "capitalize")
        return replace(style, font=replace(font, case=case))
    return style


def _box(style: Style, above: Style, name: str, tokens: Sequence[Node]) -> Style:
    if name in SIZES or name.startswith(("margin-", "padding-")):
        token = _one(tokens, name)
        if token.type != "ident" or token.lower_value != "auto":
            amount = length(token, style.font.size, ROOT_SIZE, 100.0)
            if amount < 0 and name not in ("left", "top"):
                raise Refused("squeezed_text" if name.startswith("margin") else "malformed_css", f"{name}: {amount:g}")
        return replace(style, values={**style.values, name: token})
    if name == "display":
        return replace(style, display=str(tokens[0].lower_value))
    if name == "position":
        return replace(style, position=str(tokens[0].lower_value))
    if name == "opacity":
        own = min(1.0, max(0.0, _number(tokens, name)))
        if own < 0.5:
            raise Refused("hidden_text", f"opacity: {own:g}")
        return replace(style, opacity=above.opacity * own)
    if name == "z-index":
        token = _one(tokens, name)
        if token.type != "number" or not token.is_integer or token.value > HIGHEST:
            raise Refused("malformed_css", f"z-index: {token.serialize()[:40]}; must be a whole number to {HIGHEST:,}")
        if token.value < 0:
            raise Refused("covered_text", f"z-index: {token.value:g}")
        return replace(style, z=int(token.value))
    if name == "box-sizing":
        return replace(style, border_box=_word(tokens, name, "border-box", "content-box") == "border-box")
    if name == "background-color":
        return replace(style, backgrounds=_backgrounds(_one(tokens, name), style.font.colour))
    if name == "border-radius":
        return replace(style, radii=tuple(token for token in tokens if token != "/"))
    if name.startswith("border-"):
        side = ("top", "right", "bottom", "left").index(name.removeprefix("border-"))
        borders = [*style.borders]
        borders[side] = _border(tokens, style)
        return replace(style, borders=tuple(borders))
    return style


def _backgrounds(token: Node, current: Colour) -> tuple[Colour, ...]:
    """Returns the colours of a background: a colour, or those of the stops of a gradient."""
    if token.type == "ident" and token.lower_value == "none":
        return ()
    if token.type != "function" or token.lower_name not in ("linear-gradient", "radial-gradient"):
        found = colour(token, current)
        return (found,) if found[3] else ()
    stops = []
    for one in token.arguments:
        if one.type in ("ident", "hash", "function") and (one.type != "ident" or not _direction(one)):
            stops.append(colour(one, current))
    if not 2 <= len(stops) <= MOST_STOPS:
        raise Refused("malformed_css", f"{token.serialize()[:60]} has {len(stops)} colours, not 2 to {MOST_STOPS}")
    return tuple(stops)


def _direction(token: Node) -> bool:
    return token.lower_value in ("to", "left", "right", "top", "bottom", "at", "center", "circle", "ellipse")


def _border(tokens: Sequence[Node], style: Style) -> tuple[float, Colour]:
    wide, shade, drawn = 3.0, style.font.colour, False
    for token in tokens:
        if token.type in ("dimension", "number"):
            wide = length(token, style.font.size, ROOT_SIZE, None)
        elif token.type == "ident" and token.lower_value in ("none", "solid", "dashed", "dotted", "double"):
            drawn = token.lower_value != "none"
        else:
            shade = colour(token, style.font.colour)
    if not 0 <= wide <= WIDEST_BORDER:
        raise Refused("unknown_property", f"a border of {wide:g} px; at most {WIDEST_BORDER:g}")
    return (wide if drawn else 0.0), shade
