"""Rules about how a page looks; each broken one takes a grade from its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from arcforge_rl.slides.geometry import HEIGHT, WIDTH, PageLayout, Paint, Paragraph, Rect
from arcforge_rl.slides.rules import Finding
from arcforge_rl.slides.values import WHITE, Colour, contrast, glaring, over

MARGIN = 32.0
SEEN = 1.04
"""Contrast of a shape with the page."""
CELLS = 32, 18
"""Columns and rows in which coverage is counted: cells of 40 by 40 px."""


def looks(layout: PageLayout) -> Iterator[Finding]:
    """Yields the broken rules of one page."""
    for rule, detail in _flaws(layout):
        yield Finding(rule, layout.page.page, detail)


def _flaws(layout: PageLayout) -> Iterator[tuple[str, str]]:
    texts = layout.paragraphs
    if not texts:
        return
    inside = Rect(MARGIN, MARGIN, WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN)
    if out := next((one for one in texts if not inside.holds(one.rect, 0.5)), None):
        yield "margins", repr(out.text[:40])
    title = title_of(texts)
    others = [one.size for one in texts if one is not title]
    if title.rect.top > HEIGHT / 2 or (others and max(others) >= title.size):
        yield "hierarchy", f"{title.text[:40]!r} of {title.size:g} px at {title.rect.top:.0f} px"
    sizes = {round(run.font.size) for one in texts for run in one.runs}
    if len(sizes) > 4:
        yield "type_sizes", f"{len(sizes)} sizes"
    shades = [*layout.backgrounds, *(shade for paint in layout.paints for shade in paint.colours)]
    shades += [run.font.colour for one in texts for run in one.runs]
    if len(colours := {tuple(round(32 * part) for part in shade[:3]) for shade in shades}) > 6:
        yield "palette", f"{len(colours)} colours"
    whole = [(Rect(0.0, 0.0, WIDTH, HEIGHT), layout.backgrounds)]
    areas = [rect.width * rect.height for rect, paint in [*whole, *((p.rect, p.colours) for p in layout.paints)]
             if _glares(paint)]  # fmt: skip
    if sum(areas) > 0.4 * WIDTH * HEIGHT:
        yield "saturation", f"{sum(areas) / WIDTH / HEIGHT:.0%} of the page"
    edges: list[float] = []
    for one in texts:
        if not any(abs(one.rect.left - edge) <= 6 for edge in edges):
            edges.append(one.rect.left)
    if len(edges) > 3:
        yield "alignment", f"{len(edges)} left edges"
    if long := next((one for one in texts if one.longest > 80), None):
        yield "line_length", f"{long.longest} characters in {long.text[:40]!r}"
    yield from _space(texts)
    shapes = [paint for paint in layout.paints if _visible(paint, layout.backgrounds or (WHITE,))]
    if len(layout.boxes) < 3 or not shapes:
        yield "structure", f"{len(layout.boxes) - 1} boxes, {len(shapes)} shapes"


def title_of(texts: Sequence[Paragraph]) -> Paragraph:
    """Returns the largest text of a page, of several the first."""
    return max(texts, key=lambda one: one.size)


def _visible(paint: Paint, grounds: Sequence[Colour]) -> bool:
    """Returns whether an area differs from the page; an image does."""
    if min(paint.rect.width, paint.rect.height) < 2:
        return False
    return not paint.colours or any(
        contrast(over(shade, ground), ground) >= SEEN for shade in paint.colours for ground in grounds
    )


def _glares(colours: Sequence[Colour]) -> bool:
    return any(glaring(shade) and shade[3] > 0.5 for shade in colours)


def _space(texts: Sequence[Paragraph]) -> Iterator[tuple[str, str]]:
    columns, rows = CELLS
    wide, high = WIDTH / columns, HEIGHT / rows
    filled = {
        (column, row)
        for one in texts
        for column in _cells(one.rect.left, one.rect.right, wide, columns)
        for row in _cells(one.rect.top, one.rect.bottom, high, rows)
    }
    share = len(filled) / (columns * rows)
    bands = {row for _, row in filled}
    empty = max((b - a - 1 for a, b in zip(sorted(bands | {-1}), [*sorted(bands), rows], strict=True)), default=rows)
    if not 0.04 <= share <= 0.6 or empty > rows / 2:
        yield "whitespace", f"text covers {share:.0%}, {empty / rows:.0%} of the height is empty"


def _cells(start: float, end: float, size: float, count: int) -> range:
    """Returns the cells that a stretch shares more than a pixel with, of those on the page."""
    return range(max(0, int((start + 1) // size)), min(count, max(0, int((end - 1) // size) + 1)))


def consistent(layouts: Sequence[PageLayout]) -> Iterator[Finding]:
    """Yields pages whose title is elsewhere, or of another size, than on the second page."""
    later = [layout for layout in layouts[1:] if layout.paragraphs]
    if not later:
        return
    first = title_of(later[0].paragraphs)
    for layout in later:
        title = title_of(layout.paragraphs)
        moved = max(abs(title.rect.left - first.rect.left), abs(title.rect.top - first.rect.top))
        if moved > 4 or title.size != first.size:
            yield Finding("consistency", layout.page.page, f"its title is {moved:.0f} px away from the second page's")
