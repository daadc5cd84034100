"""Rules about what a browser measures, whatever is declared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from arcforge_rl.slides.content import normal
from arcforge_rl.slides.geometry import HEIGHT, WIDTH, PageLayout, Rect
from arcforge_rl.slides.rendering.browser import Line, Rendered, Shown
from arcforge_rl.slides.rules import Finding

PAGE = Rect(0.0, 0.0, WIDTH, HEIGHT)
SMALLEST = 14.0
SLACK = 2.0
"""Differences in px that count as none."""


def measured(rendered: Rendered, layouts: Sequence[PageLayout]) -> Iterator[Finding]:
    """Yields the broken rules of a deck.

    Args:
        rendered: measures of the browser.
        layouts: pages as they were computed from the markup, whose texts the browser must show.
    """
    if rendered.flaw:
        yield Finding("unrendered", None, rendered.flaw)
        return
    if rendered.refused:
        yield Finding("requested", None, f"{rendered.refused} requests")
    for number, (wide, high) in enumerate(rendered.pages, 1):
        if max(abs(wide - WIDTH), abs(high - HEIGHT)) > 0.5:
            yield Finding("measured_16_9", number, f"{wide:g} by {high:g} px")
    for page, rect in rendered.boxes:
        if not PAGE.holds(rect, SLACK):
            yield Finding("measured_off_canvas", page, f"a box at {rect.left:.0f}, {rect.top:.0f} px")
    for page, said in rendered.hidden:
        yield Finding("measured_hidden", page, repr(said[:40]))
    for text in rendered.texts:
        yield from _text(text)
    for page in range(1, len(rendered.pages) + 1):
        yield from _overlaps(page, [text for text in rendered.texts if text.page == page])
    yield from _differences(rendered, layouts)


def _text(text: Shown) -> Iterator[Finding]:
    for line in text.lines:
        said = repr(line.text.strip()[:40])
        if line.text.strip() and (line.rect.width < 2 or line.rect.height < 2):
            yield Finding("measured_hidden", text.page, f"{said} has no area")
            return
        if line.text.strip() and line.rect.height < SMALLEST:
            yield Finding("measured_tiny", text.page, f"{said} is {line.rect.height:.0f} px high")
            return
        ink = _ink(line)
        if not PAGE.holds(ink, SLACK):
            yield Finding("measured_off_canvas", text.page, f"{said} at {ink.left:.0f}, {ink.top:.0f} px")
            return
        if not all(box.holds(ink, SLACK) for box in text.around):
            yield Finding("measured_overflow", text.page, f"{said} leaves the element that it is in")
            return


def _ink(line: Line) -> Rect:
    """Returns the part of a line that letters fill: without the space above and below them."""
    rect = line.rect
    return Rect(rect.left, rect.top + 0.15 * rect.height, rect.width, 0.7 * rect.height)


def _overlaps(page: int, texts: Sequence[Shown]) -> Iterator[Finding]:
    lines = [(text.parent, _ink(line), line.text.strip()) for text in texts for line in text.lines]
    for n, (parent, rect, said) in enumerate(lines):
        for other, second, also in lines[n + 1 :]:
            wide, high = rect.shared(second)
            if parent != other and min(wide, high) > SLACK:
                yield Finding("measured_overlap", page, f"{said[:30]!r} and {also[:30]!r}")
                return


def _differences(rendered: Rendered, layouts: Sequence[PageLayout]) -> Iterator[Finding]:
    if len(rendered.pages) != len(layouts):
        yield Finding("measured_differs", None, f"{len(rendered.pages)} pages are shown, {len(layouts)} were read")
        return
    for page, layout in enumerate(layouts, 1):
        shown = [line.text for text in rendered.texts if text.page == page for line in text.lines]
        read = [paragraph.text for paragraph in layout.paragraphs]
        if _letters(shown) != _letters(read):
            yield Finding("measured_differs", page, "the browser shows another text than the markup has")


def _letters(texts: Sequence[str]) -> str:
    return "".join(sorted(normal("".join(texts)).replace(" ", "").replace(".", "")))
