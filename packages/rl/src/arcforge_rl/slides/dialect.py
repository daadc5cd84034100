"""The part of HTML and CSS that decks are written in."""

from __future__ import annotations

VOID = ("br", "hr", "img", "meta")
ELEMENTS = (
    "html", "head", "title", "meta", "style", "body", "section", "div", "h1", "h2", "h3", "h4", "h5", "h6", "p", "ul",
    "ol", "li", "span", "b", "strong", "i", "em", "br", "hr", "img",
)  # fmt: skip
ATTRIBUTES = ("class", "id", "style", "lang", "charset", "name", "alt", "title", "width", "height")
DESCRIPTIONS = ("viewport", "description", "author", "generator")
"""Names of the element ``meta``."""
FAMILIES = (
    "sans-serif", "serif", "system-ui", "ui-sans-serif", "ui-serif", "-apple-system", "blinkmacsystemfont", "arial",
    "helvetica", "helvetica neue", "verdana", "tahoma", "trebuchet ms", "segoe ui", "roboto", "inter", "open sans",
    "lato", "noto sans", "noto serif", "source sans pro", "dejavu sans", "dejavu serif", "liberation sans",
    "liberation serif", "calibri", "cambria", "candara", "optima", "gill sans", "georgia", "times", "times new roman",
    "palatino", "garamond",
)  # fmt: skip
"""Fonts with letters that are about as wide as those that judges measure with, or narrower."""
MARKS = ("none", "disc", "circle", "square", "decimal", "inside", "outside")
"""Words of lists' styles."""
ACCEPTED = (
    "position", "left", "top", "width", "height", "z-index", "box-sizing", "display", "margin", "padding",
    "margin-top", "margin-right", "margin-bottom", "margin-left", "padding-top", "padding-right", "padding-bottom",
    "padding-left", "font-size", "font-weight", "font-style", "font-family", "line-height", "letter-spacing",
    "word-spacing", "text-indent", "text-align", "text-transform", "text-decoration", "color", "background",
    "background-color", "opacity", "border", "border-top", "border-right", "border-bottom", "border-left",
    "border-radius", "box-shadow", "list-style", "list-style-type",
)  # fmt: skip
"""Properties of decks."""
