"""Lays pages out without a browser: boxes as declared, text as its font's widths say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from arcforge_rl.slides.geometry import HEIGHT, WIDTH, Key, PageLayout, Paint, Paragraph, Rect
from arcforge_rl.slides.markup import Element
from arcforge_rl.slides.style import ROOT_SIZE, SIZES, Style
from arcforge_rl.slides.text import TextRun, lines
from arcforge_rl.slides.values import WHITE, Colour, Refused, blends, length, over

SIDES = ("top", "right", "bottom", "left")
SPACE = re.compile(r"[ \t\n\r\f]+")


def lay_out(page: Element, styles: Mapping[Element, Style]) -> PageLayout:
    """Lays a page out."""
    layout = PageLayout(page)
    work = _Work(layout, styles)
    try:
        work.start()
    except Refused as refused:
        layout.broken(refused.rule, str(refused))
    return layout


class _Work:
    def __init__(self, layout: PageLayout, styles: Mapping[Element, Style]) -> None:
        self.layout, self.styles, self.number = layout, styles, 0

    def start(self) -> None:
        page, style = self.layout.page, self.styles[self.layout.page]
        outer, inner = _sizes(style, None, None)
        if style.position != "relative" or style.display != "block":
            self.layout.broken("unmeasured_layout", f"a page is position: relative, not {style.position}")
        moved = [name for name in ("left", "top") if style.px(name, 0.0, 0.0)]
        if moved or max(abs(outer.width - WIDTH), abs(outer.height - HEIGHT)) > 0.5:
            self.layout.broken("not_16_9", f"{outer.width:g} by {outer.height:g} px")
        self.layout.boxes.append((page, outer))
        self.layout.backgrounds = self._grounds(page)
        bottom, _ = self._flow(page, inner, _within_borders(outer, style), (), ((0, 0),), ())
        if bottom > inner.top + 0.5:
            self.layout.broken("unmeasured_layout", "text of a page lies in no box of its own")

    def _grounds(self, page: Element) -> tuple[Colour, ...]:
        """Returns the colours of a page over those of the body and the root, which must be plain blocks."""
        within = [page]
        while (parent := within[0].parent) is not None:
            within.insert(0, parent)
        grounds: tuple[Colour, ...] = ()
        for one in within:
            style = self.styles[one]
            if shades := _faded(style):
                below = grounds or (WHITE,)
                grounds = tuple(over(shade, ground) for shade in blends(shades) for ground in below)
                grounds = tuple(dict.fromkeys(grounds))
            plain = style.position == "static" and style.display == "block" and not style.values.keys() & {*SIZES}
            if one is not page and (not plain or style.z is not None or any(wide for wide, _ in style.borders)):
                self.layout.broken("unmeasured_layout", f"<{one.tag}> is no plain block around the pages")
        return grounds

    def _positioned(self, one: Element, around: Rect, owners: tuple[Element, ...], context: Key) -> None:
        """Lays out a box whose place is declared."""
        style = self.styles[one]
        self.number += 1
        left, top = style.px("left", around.width), style.px("top", around.height)
        if left is None or top is None:
            raise Refused("unmeasured_layout", f"a box has no {'left' if left is None else 'top'}")
        left += style.px("margin-left", around.width, 0.0) or 0.0
        top += style.px("margin-top", around.width, 0.0) or 0.0
        left, top = around.left + left, around.top + top
        outer, inner = _sizes(style, around.width, around.height, left, top)
        key = (*context, (style.z or 0, self.number))
        self.layout.boxes.append((one, outer))
        self._paint(one, style, outer, key)
        if one.tag == "img":
            return
        within = key if style.z is not None or style.opacity < 1 else context
        bottom, _ = self._flow(one, inner, _within_borders(outer, style), owners, key, within)
        if bottom > inner.bottom + 1.0:
            what = f"{bottom - inner.top:.0f} px of text in a box of {inner.height:.0f} px"
            self.layout.broken("overflowing_text", what)

    def _paint(self, one: Element, style: Style, outer: Rect, key: Key) -> None:
        faded = _faded(style)
        if faded or one.tag == "img":
            self.layout.paints.append(Paint(outer, faded, key, one, _corners(style, outer)))
        (top, up), (right, far), (bottom, down), (left, near) = style.borders
        strips = (
            (top, up, Rect(outer.left, outer.top, outer.width, top)),
            (right, far, Rect(outer.right - right, outer.top, right, outer.height)),
            (bottom, down, Rect(outer.left, outer.bottom - bottom, outer.width, bottom)),
            (left, near, Rect(outer.left, outer.top, left, outer.height)),
        )
        for thick, shade, rect in strips:
            if thick:
                self.layout.paints.append(Paint(rect, ((*shade[:3], shade[3] * style.opacity),), key, one))

    def _flow(
        self, one: Element, room: Rect, around: Rect, owners: tuple[Element, ...], key: Key, within: Key
    ) -> tuple[float, float]:
        """Lays out the contents of a block, from top to bottom.

        Args:
            one: the block.
            room: its inner rectangle; its height does not matter.
            around: rectangle in which boxes are placed.
            owners: elements that `one` lies in, inwards first.
            key: of the positioned box.
            within: stacking context of boxes in it.

        Returns:
            Bottom of the last block, and the margin below it, in px.
        """
        owners, at, gap = (one, *owners), room.top, 0.0
        for block in self._blocks(one):
            if isinstance(block, list):
                bottom = self._paragraph(one, block, room, at + gap, owners, key)
                at, gap = (bottom, 0.0) if bottom > at + gap else (at, gap)
                continue
            style = self.styles[block]
            if style.position == "absolute":
                self._positioned(block, around, owners, within)
                continue
            self._plain(block, one)
            at += max(gap, style.px("margin-top", room.width, 0.0) or 0.0)
            at, gap = self._in_flow(block, style, room, at, around, owners, key, within)
        return at, gap

    def _plain(self, block: Element, one: Element) -> None:
        """Refuses what a block in the flow may not have."""
        style = self.styles[block]
        if style.position != "static" or block.tag == "img":
            raise Refused("unmeasured_layout", f"<{block.tag}> in a box is neither in its flow nor position: absolute")
        if style.opacity != self.styles[one].opacity:
            raise Refused("unmeasured_layout", f"opacity of <{block.tag}>, which is no positioned box")

    def _in_flow(
        self, block: Element, style: Style, room: Rect, at: float, around: Rect, owners: tuple[Element, ...], key: Key,
        within: Key,
    ) -> tuple[float, float]:  # fmt: skip
        space = [style.px(f"padding-{side}", room.width, 0.0) or 0.0 for side in SIDES]
        top, right, bottom, left = (a + b[0] for a, b in zip(space, style.borders, strict=True))
        start = room.left + (style.px("margin-left", room.width, 0.0) or 0.0)
        width, height = style.px("width", room.width), style.px("height", None)
        if width is None:
            end = room.right - (style.px("margin-right", room.width, 0.0) or 0.0)
        else:
            end = start + width + (0.0 if style.border_box else left + right)
        inner = Rect(start + left, at + top, max(0.0, end - right - start - left), 0.0)
        place = len(self.layout.paints)
        low, gap = self._flow(block, inner, around, owners, key, within)
        if bottom:
            low, gap = low + gap + bottom, 0.0
        if height is not None:
            declared = at + height + (0.0 if style.border_box else top + bottom)
            if low > declared + 1.0:
                self.layout.broken("overflowing_text", f"<{block.tag}> is lower than its text")
            low, gap = declared, 0.0
        later = self.layout.paints[place:]
        del self.layout.paints[place:]
        self._paint(block, style, Rect(start, at, max(0.0, end - start), low - at), key)
        self.layout.paints += later
        return low, max(gap, style.px("margin-bottom", room.width, 0.0) or 0.0)

    def _blocks(self, one: Element) -> Iterator[Element | list[Element | str]]:
        """Yields the blocks of a block, and what lies between them as lists of texts and inline elements."""
        inline: list[Element | str] = []
        for child in one.children:
            if isinstance(child, str) or (
                self.styles[child].display == "inline"
                and self.styles[child].position == "static"
                and child.tag != "img"
            ):
                inline.append(child)
                continue
            yield from [inline] if inline else []
            inline = []
            yield child
        yield from [inline] if inline else []

    def _paragraph(
        self, one: Element, inline: list[Element | str], room: Rect, at: float, owners: tuple[Element, ...], key: Key
    ) -> float:
        runs = list(_collapsed(self._runs(one, inline)))
        if not any(run.text.strip() for run in runs):
            return at
        style = self.styles[one]
        measured = lines(runs, room.width, style.indent)
        height = sum(high for _, high, _ in measured)
        widest = max(wide for wide, _, _ in measured)
        if widest > room.width + 1.0:
            self.layout.broken("overflowing_text", f"a word of {widest:.0f} px in {room.width:.0f} px")
        free = room.width - widest
        left = room.left + {"right": free, "end": free, "center": free / 2}.get(style.align, 0.0)
        text = " ".join("".join(run.text for run in runs).split())
        longest = max(count for _, _, count in measured)
        rect = Rect(left, at, widest, height)
        self.layout.paragraphs.append(Paragraph(text, tuple(runs), rect, longest, key, owners))
        return at + height

    def _runs(self, one: Element, inline: list[Element | str]) -> Iterator[TextRun]:
        style = self.styles[one]
        for child in inline:
            if isinstance(child, str):
                faded: Colour = (*style.font.colour[:3], style.font.colour[3] * style.opacity)
                yield TextRun(SPACE.sub(" ", child), replace(style.font, colour=faded))
            elif child.tag == "br":
                yield TextRun("\n", style.font)
            else:
                self._inline(child)
                yield from self._runs(child, child.children)

    def _inline(self, one: Element) -> None:
        """Refuses what an element among text may not have."""
        style = self.styles[one]
        spaced = any(style.px(f"{kind}-{side}", 0.0, 0.0) for kind in ("margin", "padding") for side in SIDES)
        if one.tag == "img" or style.display != "inline" or style.position != "static":
            raise Refused("unmeasured_layout", f"<{one.tag}> among text is a block")
        if spaced or style.backgrounds or any(wide for wide, _ in style.borders):
            raise Refused("unmeasured_layout", f"<{one.tag}> among text has a background, a border or a space")


def _faded(style: Style) -> tuple[Colour, ...]:
    """Returns the colours of a background with the opacity of its element."""
    return tuple((*shade[:3], shade[3] * style.opacity) for shade in style.backgrounds)


def _corners(style: Style, outer: Rect) -> tuple[float, float]:
    """Returns width and height of the largest round corner of a box, in px."""
    across = [length(token, style.font.size, ROOT_SIZE, outer.width) for token in style.radii]
    down = [length(token, style.font.size, ROOT_SIZE, outer.height) for token in style.radii]
    return min(max(across, default=0.0), outer.width / 2), min(max(down, default=0.0), outer.height / 2)


def _within_borders(outer: Rect, style: Style) -> Rect:
    top, right, bottom, left = (wide for wide, _ in style.borders)
    return Rect(outer.left + left, outer.top + top, outer.width - left - right, outer.height - top - bottom)


def _sizes(
    style: Style, wide: float | None, high: float | None, left: float = 0.0, top: float = 0.0
) -> tuple[Rect, Rect]:
    """Returns the outer and the inner rectangle of a box with a size, in one of `wide` by `high` px if known."""
    width, height = style.px("width", wide), style.px("height", high)
    if width is None or height is None:
        raise Refused("unmeasured_layout", f"a box has no {'width' if width is None else 'height'}")
    space = [style.px(f"padding-{side}", wide, 0.0) or 0.0 for side in SIDES]
    up, far, down, near = (a + b[0] for a, b in zip(space, style.borders, strict=True))
    if not style.border_box:
        width, height = width + near + far, height + up + down
    inner = Rect(left + near, top + up, max(0.0, width - near - far), max(0.0, height - up - down))
    return Rect(left, top, width, height), inner


def _collapsed(runs: Iterator[TextRun]) -> Iterator[TextRun]:
    """Leaves out spaces at the beginning of lines and after spaces."""
    blank = True
    for run in runs:
        text = run.text.lstrip(" ") if blank and run.text != "\n" else run.text
        if text:
            yield TextRun(text, run.font)
            blank = text.endswith((" ", "\n"))
