"""HTML documents as drafts of pages: title, labelled facts of tables and lists, prose, links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urldefrag, urljoin

from arcforge_core.errors import ConfigError
from arcforge_rl.search.pages import LABELLED

DROPPED = "script, style, template, noscript, svg, nav, header, footer, aside, form, button, iframe"
BLOCKS = (
    "p", "div", "section", "article", "ul", "ol", "li", "dl", "dt", "dd", "table", "tr", "h1", "h2", "h3", "h4", "h5",
    "h6", "pre", "blockquote", "br", "hr", "figure", "main",
)  # fmt: skip
LONGEST_VALUE = 120
"""Characters of a value; longer ones are prose."""
LONGEST_PROSE = 20_000
"""Characters of a page's prose."""
LABEL = re.compile(r"[^A-Za-z -]+")


@dataclass(frozen=True)
class DocumentDraft:
    """A document before its links are resolved.

    Attributes:
        address: where it was found.
        title: of its head.
        heading: its first heading; empty if it has none.
        facts: values by label.
        prose: its text, a line per block.
        links: addresses, without fragments.
    """

    address: str
    title: str
    heading: str
    facts: dict[str, tuple[str, ...]]
    prose: str
    links: tuple[str, ...] = ()


def draft_of(address: str, html: str) -> DocumentDraft:
    """Returns the draft of an HTML document, however broken.

    Raises:
        ConfigError: the package of the parser is not installed.
    """
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError as error:
        raise ConfigError("--corpus", address, "needs selectolax: pip install 'arcforge-rl[search]'") from error
    tree = LexborHTMLParser(html)
    title = _text(tree.css_first("head title") or tree.css_first("title"))
    for node in tree.css(DROPPED):
        node.decompose()
    body = tree.css_first("main, article, [role=main]") or tree.body
    if body is None:
        return DocumentDraft(address, title, "", {}, "")
    heading = _text(body.css_first("h1")).rstrip("\u00b6 ")
    facts: dict[str, tuple[str, ...]] = {}
    for label, cell in [*_rows(body), *_terms(body)]:
        values = tuple(dict.fromkeys(value for value in _values(cell) if len(value) <= LONGEST_VALUE))
        named = " ".join(LABEL.sub(" ", label).split()).capitalize()
        if values and LABELLED.fullmatch(f"{named}: x"):
            facts.setdefault(named, values)
    found = [urldefrag(urljoin(address, str(node.attributes.get("href") or ""))).url for node in body.css("a[href]")]
    return DocumentDraft(address, title, heading, facts, _prose(body), tuple(dict.fromkeys(found)))


def _text(node: Any) -> str:
    return " ".join(node.text(separator=" ").split()) if node is not None else ""


def _rows(body: Any) -> list[tuple[str, Any]]:
    """Returns label and cell of rows with one of each, as in the boxes of encyclopedias."""
    found = []
    for row in body.css("tr"):
        heads, cells = row.css("th"), row.css("td")
        if len(heads) == len(cells) == 1:
            found.append((_text(heads[0]), cells[0]))
    return found


def _terms(body: Any) -> list[tuple[str, Any]]:
    """Returns term and description of field lists, such as ``Raises``."""
    found = []
    for term in body.css("dt"):
        other = term.next
        while other is not None and other.tag.startswith("-"):  # texts between elements
            other = other.next
        if other is not None and other.tag == "dd":
            found.append((_text(term).rstrip(":"), other))
    return found


def _values(cell: Any) -> list[str]:
    for inside in ("li", "a"):
        if nodes := cell.css(inside):
            return [value for node in nodes if (value := _text(node).replace(";", ","))]
    text = _text(cell)
    return [value for part in text.split(";" if ";" in text else ", ") if (value := part.strip())]


def _prose(body: Any) -> str:
    lines: list[list[str]] = [[]]
    for node in body.traverse(include_text=True):
        if node.tag in BLOCKS:
            lines.append([])
        elif node.tag == "-text":
            lines[-1].append(node.text(deep=False) or "")
    texts = (" ".join("".join(parts).split()) for parts in lines)
    return "\n".join(filter(None, texts))[:LONGEST_PROSE]
