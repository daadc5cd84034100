"""The part of HTML and CSS that decks are written in."""

from __future__ import annotations

VOID = ("br", "hr", "img", "meta")
ELEMENTS = (
    "html", "head", "title", "meta", "style", "body", "section", "div", "h1", "h2", "h3", "h4", "h5", "h6", "p", "ul",
    "ol", "li", "span", "b", "strong", "i", "em", "br", "hr", "img",
)  # fmt: skip
ATTRIBUTES = ("class", "id", "style", "lang", "charset", "name", "alt", "title", "width", "height")
ACCEPTED = (
    "position", "left", "top", "width", "height", "z-index", "box-sizing", "display", "margin", "padding",
    "margin-top", "margin-right", "margin-bottom", "margin-left", "padding-top", "padding-right", "padding-bottom",
    "padding-left", "font-size", "font-weight", "font-style", "font-family", "line-height", "letter-spacing",
    "word-spacing", "text-indent", "text-align", "text-transform", "text-decoration", "color", "background",
    "background-color", "opacity", "border", "border-top", "border-right", "border-bottom", "border-left",
    "border-radius", "box-shadow", "list-style", "list-style-type",
)  # fmt: skip
"""Properties of decks."""
