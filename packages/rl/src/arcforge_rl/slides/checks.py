"""Rules about what a page shows: text on its grounds, boxes on the page, and how it looks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence

from arcforge_rl.slides.geometry import HEIGHT, WIDTH, PageLayout, Paint, Paragraph, Rect
from arcforge_rl.slides.markup import Element
from arcforge_rl.slides.rules import Finding
from arcforge_rl.slides.values import WHITE, Colour, blends, contrast, over

PAGE = Rect(0.0, 0.0, WIDTH, HEIGHT)
SMALLEST, LARGE = 14.0, 24.0
"""Of text, in px; large text needs less contrast."""
HIDDEN_BELOW, LEAST, LEAST_LARGE = 1.6, 4.5, 3.0
"""Contrasts: below the first a text counts as hidden."""
ODD = re.compile(
    "[^\n\t\r -~\u00a0-\u00ff\u0100-\u017f\u2010-\u2015\u2018-\u201e\u2020-\u2022\u2026\u2190-\u2193\u20ac\u2212\u2248]"
)
"""Characters other than those of Latin scripts and their punctuation."""
SOFT_HYPHEN = "\u00ad"
MOST_GROUNDS = 500
"""Colours that a text lies on."""
MOST_PIXELS = 4_000_000


def shown(layout: PageLayout) -> Iterator[Finding]:
    """Yields the broken rules of one page about what can be seen."""
    number = layout.page.page
    boxes, paints = dict(layout.boxes), sorted(layout.paints, key=lambda paint: paint.key)
    for one, rect in layout.boxes:
        if not PAGE.holds(rect, 0.5):
            yield Finding("off_canvas", number, f"<{one.tag}> reaches from {rect.left:g}, {rect.top:g} px to "
                          f"{rect.right:g}, {rect.bottom:g}")  # fmt: skip
    for paragraph in layout.paragraphs:
        said = repr(paragraph.text[:40])
        box = next((boxes[owner] for owner in paragraph.owners if owner in boxes), PAGE)
        if paragraph.smallest < 2 or box.width < 2 or box.height < 2:
            yield Finding(
                "zero_size", number, f"{said} of {paragraph.smallest:g} px in {box.width:g} by {box.height:g} px"
            )
        elif paragraph.smallest < SMALLEST:
            yield Finding("tiny_text", number, f"{said} of {paragraph.smallest:g} px")
        if not box.holds(paragraph.rect, 1.0):
            yield Finding("overflowing_text", number, f"{said} leaves its box")
        if not PAGE.holds(paragraph.rect, 0.5):
            yield Finding("off_canvas", number, f"{said} leaves the page")
        if odd := ODD.search(paragraph.text) or re.search(SOFT_HYPHEN, paragraph.text):
            yield Finding("odd_characters", number, f"U+{ord(odd[0]):04X} in {said}")
        yield from _legible(layout, paragraph, paints)
    yield from _overlaps(layout)


def _legible(layout: PageLayout, paragraph: Paragraph, paints: Sequence[Paint]) -> Iterator[Finding]:
    number, said = layout.page.page, repr(paragraph.text[:40])
    grounds: set[Colour] = {over(shade, WHITE) for shade in layout.backgrounds} or {WHITE}
    pictured = False
    for paint in paints:
        wide, high = paint.rect.shared(paragraph.rect)
        if min(wide, high) <= 0.5:
            continue
        if paint.key > paragraph.key and max(shade[3] for shade in paint.colours or (WHITE,)) > 0.05:
            yield Finding("covered_text", number, f"{said} lies under <{paint.owner.tag}>")
            return
        painted = {over(shade, ground) for shade in blends(paint.colours) for ground in grounds}
        if len(painted) > MOST_GROUNDS:
            yield Finding("contrast", number, f"{said} lies on more than {MOST_GROUNDS} colours")
            return
        whole = paint.solid.holds(paragraph.rect, 0.5)
        grounds = painted if whole and painted else grounds | painted
        pictured = not paint.colours or (pictured and not whole)
    if pictured:
        yield Finding("overlap", number, f"{said} lies over an image")
    for run in paragraph.runs:
        if not run.text.strip():
            continue
        worst = min(contrast(over(run.font.colour, ground), ground) for ground in grounds)
        if worst < HIDDEN_BELOW:
            yield Finding("text_of_background", number, f"{said} has a contrast of {worst:.2f}")
            return
        if worst < (LEAST_LARGE if run.font.size >= LARGE else LEAST):
            yield Finding("contrast", number, f"{said} has a contrast of {worst:.2f}")
            return


def _overlaps(layout: PageLayout) -> Iterator[Finding]:
    found = layout.paragraphs
    for n, first in enumerate(found):
        for second in found[n + 1 :]:
            wide, high = first.rect.shared(second.rect)
            if wide > 2 and high > 2:
                what = f"{first.text[:30]!r} and {second.text[:30]!r} share {wide:.0f} by {high:.0f} px"
                yield Finding("overlap", layout.page.page, what)
                return


def images(pages: Sequence[Element]) -> Iterator[Finding]:
    """Yields the broken rules of a deck's images."""
    seen: set[str] = set()
    for page in pages:
        for one in page.elements():
            source = one.attributes.get("src", "") if one.tag == "img" else ""
            if not source.startswith("data:image/"):
                continue
            digest = hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()
            if digest in seen:
                yield Finding("duplicate_image", page.page, f"{source[:30]}... is shown twice")
            seen.add(digest)
            if flaw := broken(source):
                yield Finding("broken_image", page.page, flaw)


def broken(source: str) -> str:
    """Returns why a data address is no image, or an empty text."""
    from PIL import Image

    kind, _, data = source.partition(";base64,")
    if kind not in ("data:image/png", "data:image/jpeg", "data:image/gif"):
        return f"{kind[:30]} is neither PNG, JPEG nor GIF in base64"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns of images that are bombs
            with Image.open(io.BytesIO(base64.b64decode(data, validate=True)), formats=("PNG", "JPEG", "GIF")) as image:
                if image.width * image.height > MOST_PIXELS:
                    return f"{image.width} by {image.height} pixels are too many"
                image.load()
    except (binascii.Error, OSError, ValueError, SyntaxError, Warning, Image.DecompressionBombError) as error:
        return f"cannot be decoded: {error}"[:100]
    return ""
