"""Writes a deck that keeps every rule."""

from __future__ import annotations

import functools
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template

from arcforge_rl.slides.brief import Brief

ACCENTS = ("#1f5673", "#7a3b2e", "#2f5d3a", "#5b3a78")


@functools.cache
def _template() -> Template:
    text = resources.files("arcforge_rl.slides").joinpath("oracle.html").read_text(encoding="utf-8")
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return made.from_string(text)


def deck_of(brief: Brief) -> str:
    """Returns a document; its colour depends on the number of pages and on the first title."""
    accent = ACCENTS[(len(brief.pages) + len(brief.pages[0].title)) % len(ACCENTS)]
    return _template().render(pages=brief.pages, accent=accent)
