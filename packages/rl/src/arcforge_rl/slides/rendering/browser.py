"""Shows documents in Chromium, each in a sandbox of its own, without network and with fonts of known widths."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from arcforge_core.contracts.sandbox import (
    Command,
    CommandStatus,
    ExecResult,
    SandboxBackend,
    SandboxFault,
    SandboxLimits,
)
from arcforge_core.errors import ConfigError
from arcforge_rl.layers.recipes import recipe_of
from arcforge_rl.layers.store import LayerError, LayerStore
from arcforge_rl.sandbox.sync import shared_desk
from arcforge_rl.slides.geometry import HEIGHT, WIDTH, Rect

LAYER, PROGRAM = "chromium-headless", "chromium-headless-shell"
FONTS = "/opt/arcforge-fonts"
FONT_FILE = "/workspace/fonts.conf"
SETTINGS = f"""<?xml version="1.0"?><fontconfig><dir>{FONTS}</dir>
<cachedir>/tmp/fonts</cachedir><match target="pattern"><edit name="family" mode="assign" binding="strong">
<string>DejaVu Sans</string></edit></match></fontconfig>"""
LIMITS = SandboxLimits(
    cpu_seconds=30, wall_seconds=300, memory_bytes=2 << 30, processes=512, disk_bytes=256 << 20, output_bytes=64 << 20
)
"""A document that needs more processor time is its author's fault; one that waits longer is the machine's."""


@dataclass(frozen=True)
class Line:
    """A line of text: its place on the page, and what it says."""

    rect: Rect
    text: str


@dataclass(frozen=True)
class Shown:
    """A text as it is shown.

    Attributes:
        page: number from 1.
        lines: of the text.
        around: rectangles of the elements that it lies in, inwards first, without the page.
        parent: number of its element.
    """

    page: int
    lines: tuple[Line, ...]
    around: tuple[Rect, ...]
    parent: int


@dataclass(frozen=True)
class Rendered:
    """A document in a browser; places are in px on the page.

    Attributes:
        pages: width and height of each.
        boxes: page and rectangle of each element.
        texts: in the order of the document.
        hidden: page and beginning of texts that are not shown.
        refused: requests that were not answered.
        pictures: PNG of each page; empty if they were not asked for.
        pdf: of all pages; empty if it was not asked for.
        version: of the browser.
        flaw: why the document could not be shown; then there is nothing else.
    """

    pages: tuple[tuple[float, float], ...] = ()
    boxes: tuple[tuple[int, Rect], ...] = ()
    texts: tuple[Shown, ...] = ()
    hidden: tuple[tuple[int, str], ...] = ()
    refused: int = 0
    pictures: tuple[bytes, ...] = ()
    pdf: bytes = b""
    version: str = ""
    flaw: str = ""


@functools.cache
def browser_layers(option: str = "environment.level", value: str = "2 or 3") -> tuple[tuple[Path, str], ...]:
    """Returns the layers that sandboxes need: Chromium's, and the fonts that matplotlib brings.

    Args:
        option: that asks for them.
        value: of it.

    Raises:
        ConfigError: Chromium's layer is not there.
    """
    import matplotlib

    fonts = Path(matplotlib.get_data_path(), "fonts/ttf")
    try:
        return (*LayerStore().find(recipe_of(LAYER)).shown, (fonts, FONTS))
    except LayerError as error:
        raise ConfigError(option, value, f"needs Chromium: {error}") from error


async def render(document: str, *, pictures: bool = False, pdf: bool = False) -> Rendered:
    """Shows a document.

    Args:
        document: HTML.
        pictures: whether to take a picture of each page, at most 20.
        pdf: whether to print the pages.

    Raises:
        SandboxFault: the sandbox or the browser broke, twice.
        ConfigError: Chromium's layer is not there.
    """
    layers, python = browser_layers(), shared_desk().python
    size = {"width": int(WIDTH), "height": int(HEIGHT), "pictures": pictures, "pdf": pdf}
    given = json.dumps({"program": PROGRAM, "html": document, "selector": ["section", "slide"], **size})

    async def attempt(backend: SandboxBackend) -> Rendered:
        sandbox = await backend.open(limits=LIMITS, layers=layers)
        try:
            await sandbox.write(FONT_FILE, SETTINGS.encode())
            program = resources.files("arcforge_rl.slides.rendering").joinpath("inside.py").read_text(encoding="utf-8")
            argv = (python, "-I", "-c", program)
            done = await sandbox.exec(Command(argv, given.encode("utf-8", "replace"), {"FONTCONFIG_FILE": FONT_FILE}))
        finally:
            await sandbox.stop()
        return read(done)

    return await shared_desk().retry(attempt)


def read(done: ExecResult) -> Rendered:
    """Returns the measures of a run.

    Raises:
        SandboxFault: there are none, and the document is not to blame.
    """
    if done.outcome in (CommandStatus.OUTPUT_LIMIT, CommandStatus.OUT_OF_MEMORY):
        return Rendered(flaw=f"showing it ended with {done.outcome.value}")
    try:
        found = json.loads(done.stdout)
        if "error" in found:
            raise SandboxFault(f"Chromium failed: {found['error']} {found['log']}"[:600])
        return _rendered(found)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        said = done.stderr[-300:].decode(errors="replace")
        raise SandboxFault(f"Chromium gave no measures ({done.outcome.value} {done.code}): {error} {said}") from error


def _rendered(found: Mapping[str, Any]) -> Rendered:
    origins = [(float(left), float(top)) for left, top, _, _ in found["pages"]]

    def rect(numbers: Sequence[float], page: int) -> Rect:
        left, top, wide, high = map(float, numbers)
        return Rect(left - origins[page][0], top - origins[page][1], wide, high)

    boxes = {box["node"]: (box["page"], rect(box["rect"], box["page"]), box["parent"]) for box in found["boxes"]}

    def around(node: int) -> tuple[Rect, ...]:
        rects: list[Rect] = []
        while node in boxes:
            rects.append(boxes[node][1])
            node = boxes[node][2]
        return tuple(rects[:-1])

    texts = tuple(
        Shown(
            one["page"] + 1,
            tuple(Line(rect(line["rect"], one["page"]), str(line["text"])) for line in one["lines"]),
            around(one["parent"]),
            int(one["parent"]),
        )
        for one in found["texts"]
    )
    return Rendered(
        tuple((float(wide), float(high)) for _, _, wide, high in found["pages"]),
        tuple((page + 1, place) for page, place, _ in boxes.values()),
        texts,
        tuple((one["page"] + 1, str(one["text"])) for one in found["hidden"]),
        int(found["refused"]),
        tuple(base64.b64decode(picture) for picture in found.get("pictures", ())),
        base64.b64decode(found.get("pdf", "")),
        str(found["version"]),
    )
