"""The families of tasks about pages, by name."""

from __future__ import annotations

from arcforge_rl.terminal.authoring.pages import closure, examples, index, links
from arcforge_rl.terminal.authoring.pages.drawing import PageFamily, Unfit

__all__ = ["PAGE_FAMILIES", "Unfit"]
PAGE_FAMILIES: dict[str, PageFamily] = {
    "closure": closure.draw, "examples": examples.draw, "index": index.draw, "links": links.draw,
}  # fmt: skip
