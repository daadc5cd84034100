"""Rules about pictures of pages: text that can be seen, space and balance."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image

from arcforge_rl.slides.geometry import HEIGHT, WIDTH
from arcforge_rl.slides.rendering.browser import Rendered
from arcforge_rl.slides.rules import Finding

Grey = npt.NDArray[np.float64]
CELL = 40
"""Edge of a cell in px, in which a page is full or empty."""
UNSEEN, FAINT = 1.6, 2.5
"""Contrasts between the lightest and the darkest pixels of a line of text."""
EMPTIEST, OFF_CENTRE, GLARING = 0.55, 0.25, 0.4


def seen(rendered: Rendered) -> Iterator[Finding]:
    """Yields the broken rules of a deck's pictures."""
    for number, data in enumerate(rendered.pictures, 1):
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            pixels = np.asarray(image.convert("RGB"), dtype=np.float64) / 255
        if pixels.shape[:2] != (HEIGHT, WIDTH):
            yield Finding("measured_16_9", number, f"a picture of {pixels.shape[1]} by {pixels.shape[0]} px")
            continue
        light = luminance(pixels)
        yield from _texts(rendered, number, light)
        yield from _space(number, light)
        high, low = pixels.max(axis=2), pixels.min(axis=2)
        share = float(((high > 0.85) & (high - low > 0.85 * high)).mean())
        if share > GLARING:
            yield Finding("seen_glare", number, f"{share:.0%} of the page")


def luminance(pixels: npt.NDArray[np.float64]) -> Grey:
    """Returns the relative luminance of red, green and blue in [0, 1] (WCAG 2.2)."""
    linear = np.where(pixels <= 0.04045, pixels / 12.92, ((pixels + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ np.array([0.2126, 0.7152, 0.0722]))


def _texts(rendered: Rendered, number: int, light: Grey) -> Iterator[Finding]:
    worst: dict[str, str] = {}
    for text in rendered.texts:
        for line in text.lines if text.page == number else ():
            left, top = max(0, int(line.rect.left)), max(0, int(line.rect.top))
            part = light[top : int(line.rect.bottom), left : int(line.rect.right)]
            if not part.size or not line.text.strip():
                continue
            contrast = (float(part.max()) + 0.05) / (float(part.min()) + 0.05)
            rule = "unseen_text" if contrast < UNSEEN else "faint_text" if contrast < FAINT else ""
            if rule:
                worst.setdefault(rule, f"{line.text.strip()[:40]!r} has a contrast of {contrast:.2f}")
    for rule, detail in worst.items():
        yield Finding(rule, number, detail)


def _space(number: int, light: Grey) -> Iterator[Finding]:
    rows, columns = light.shape[0] // CELL, light.shape[1] // CELL
    cells = light[: rows * CELL, : columns * CELL].reshape(rows, CELL, columns, CELL)
    full = np.ptp(cells, axis=(1, 3)) > 0.02
    if not full.any():
        yield Finding("seen_whitespace", number, "nothing is on the page")
        return
    empty = largest_empty(full) / full.size
    if empty > EMPTIEST:
        yield Finding("seen_whitespace", number, f"an empty rectangle covers {empty:.0%} of the page")
    across, down = (float(np.average(np.arange(n) + 0.5, weights=full.sum(axis=a)) / n) - 0.5
                    for n, a in ((columns, 0), (rows, 1)))  # fmt: skip
    if max(abs(across), abs(down)) > OFF_CENTRE:
        yield Finding("balance", number, f"its middle is {across:+.0%} across and {down:+.0%} down from the page's")


def largest_empty(full: npt.NDArray[np.bool_]) -> int:
    """Returns the number of cells of the largest rectangle without a full one."""
    rows, columns = full.shape
    heights, best = np.zeros(columns, dtype=int), 0
    for row in range(rows):
        heights = np.where(full[row], 0, heights + 1)
        for left in range(columns):
            lowest = rows
            for right in range(left, columns):
                lowest = min(lowest, int(heights[right]))
                if not lowest:
                    break
                best = max(best, lowest * (right - left + 1))
    return best
