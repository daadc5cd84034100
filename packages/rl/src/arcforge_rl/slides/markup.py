"""HTML as a tree: parsed twice, so that only documents which every parser reads alike are well-formed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

from selectolax.lexbor import LexborHTMLParser, LexborNode

from arcforge_rl.slides.dialect import ATTRIBUTES, DESCRIPTIONS, ELEMENTS, VOID
from arcforge_rl.slides.rules import Finding

MOST_ELEMENTS, DEEPEST = 1_000, 30


@dataclass(eq=False)
class Element:
    """An element.

    Attributes:
        tag: its name.
        attributes: by name; a missing value is an empty text.
        parent: None for the root.
        children: elements and texts, without comments.
        page: number of the page that it is on, from 1; None for none.
    """

    tag: str
    attributes: dict[str, str]
    parent: Element | None
    children: list[Element | str] = field(default_factory=list)
    page: int | None = None

    def elements(self) -> Iterator[Element]:
        """Yields the element and those in it, in the order of the document."""
        left = [self]
        while left:
            one = left.pop()
            yield one
            left += [child for child in reversed(one.children) if isinstance(child, Element)]

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()


@dataclass(frozen=True)
class Markup:
    """A parsed document.

    Attributes:
        root: the element ``html``; None where there is no document.
        pages: the sections of class ``slide`` directly in the body, in order.
        findings: broken rules of the markup.
        parser: selectors are asked of it.
        by_node: elements by the parser's identifier of their node.
    """

    root: Element | None
    pages: tuple[Element, ...]
    findings: tuple[Finding, ...]
    parser: LexborHTMLParser
    by_node: dict[int, Element]


def read_markup(text: str) -> Markup:
    """Parses a document."""
    plain = _Plain()
    plain.feed(text)
    plain.close()
    findings = list(plain.findings)
    if plain.count > MOST_ELEMENTS or plain.deepest > DEEPEST:  # before a parser that may open elements again
        return _too_large(plain.count, plain.deepest, LexborHTMLParser(""))
    parser = LexborHTMLParser(text)
    by_node: dict[int, Element] = {}
    assert parser.root is not None
    root = _tree(parser.root, by_node)
    shape = [(one.tag, _depth(one)) for one in root.elements()]
    if len(shape) > MOST_ELEMENTS + 4 or max(depth for _, depth in shape) > DEEPEST + 4:
        return _too_large(len(shape), max(depth for _, depth in shape), parser)
    if shape != plain.shape:
        at = next((n for n, (a, b) in enumerate(zip(shape, plain.shape, strict=False)) if a != b), None)
        where = "at its end" if at is None else f"at <{plain.shape[at][0]}>"
        findings.append(Finding("malformed", None, f"elements are nested otherwise than written, {where}"))
    pages = tuple(
        one
        for one in root.elements()
        if one.tag == "section" and "slide" in one.classes and one.parent is not None and one.parent.tag == "body"
    )
    for number, page in enumerate(pages, 1):
        for one in page.elements():
            one.page = number
    findings += _flaws(root)
    return Markup(root, pages, tuple(findings), parser, by_node)


def _too_large(count: int, deepest: int, parser: LexborHTMLParser) -> Markup:
    what = f"{count:,} elements, {deepest} inside one another"
    return Markup(None, (), (Finding("too_large", None, what),), parser, {})


def _tree(top: LexborNode, by_node: dict[int, Element]) -> Element:
    root: Element | None = None
    for node in top.traverse(include_text=True):
        if node.is_comment_node or node.tag is None:
            continue
        parent = by_node.get(node.parent.mem_id) if node.parent is not None else None
        if node.is_text_node:
            if parent is not None:
                parent.children.append(node.text_content or "")
            continue
        one = Element(node.tag, {name: value or "" for name, value in node.attributes.items()}, parent)
        by_node[node.mem_id] = one
        if parent is not None:
            parent.children.append(one)
        root = root or one
    assert root is not None
    return root


def _depth(one: Element) -> int:
    depth = 0
    while one.parent is not None:
        one, depth = one.parent, depth + 1
    return depth


def _flaws(root: Element) -> Iterator[Finding]:
    for one in root.elements():
        inside = one.parent.tag if one.parent is not None else ""
        if one.tag in ("script", "noscript"):
            yield Finding("script", one.page, f"<{one.tag}>")
        elif one.tag in ("link", "base", "iframe", "object", "embed", "video", "audio", "source", "svg", "picture"):
            yield Finding("remote_load", one.page, f"<{one.tag[:20]}> may load something")
        elif one.tag in ("details", "template", "dialog", "noframes", "datalist"):
            yield Finding("hidden_text", one.page, f"<{one.tag}> hides what is in it")
        elif one.tag not in ELEMENTS or (one.tag in ("meta", "style", "title") and inside != "head"):
            yield Finding("foreign_element", one.page, f"<{one.tag[:20]}> in <{inside[:20]}>")
        elif inside == "body" and one.page is None:
            yield Finding("foreign_element", None, f"<{one.tag}> in <body> is no section of class slide")
        for name, value in one.attributes.items():
            if flaw := _attribute(one.tag, name, value):
                yield Finding(flaw, one.page, f'{name[:20]}="{value[:60]}" of <{one.tag[:20]}>')
        text = "".join(child for child in one.children if isinstance(child, str))
        if one.page is None and text.strip() and one.tag not in ("title", "style"):
            yield Finding("text_outside", None, repr(text.strip()[:60]))


def _attribute(tag: str, name: str, value: str) -> str:
    """Returns the rule that an attribute breaks, or an empty text."""
    if name.startswith("on") or "javascript:" in "".join(value.lower().split()):
        return "script"
    if name == "src" and tag == "img":
        return "" if value.startswith("data:image/") else "remote_load"
    if name in ("src", "href", "srcset", "data", "poster", "background", "http-equiv", "ping", "action", "srcdoc"):
        return "remote_load"
    if name in ("hidden", "inert", "popover"):
        return "hidden_text"
    if name == "dir":
        return "turned_text"
    if name == "content":
        return "" if tag == "meta" and "url" not in value.lower() else "remote_load"
    if name == "title" and tag == "style":  # of several such sheets browsers use those of one title
        return "hidden_text"
    if name == "name" and tag == "meta" and value.lower() not in DESCRIPTIONS:  # such as color-scheme
        return "foreign_element"
    if name in ATTRIBUTES or name.startswith(("aria-", "data-")) or name == "role":
        return "" if name not in ("width", "height") or tag == "img" else "foreign_element"
    return "foreign_element"


class _Plain(HTMLParser):
    """Elements as they are written: names with depths, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.shape: list[tuple[str, int]] = []
        self.findings: list[Finding] = []
        self._open: list[str] = []
        self.count = self.deepest = 0
        self._typed = False

    def handle_decl(self, decl: str) -> None:
        if decl.strip().lower() != "doctype html" or self.shape:
            self._malformed(f"<!{decl[:40]}>")
        self._typed = True

    def unknown_decl(self, data: str) -> None:
        self._malformed(f"<![{data[:40]}")

    def handle_pi(self, data: str) -> None:
        self._malformed(f"<?{data[:40]}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._typed and not self.shape:
            self._malformed("no document type is at the beginning")
        self.count += 1
        self.deepest = max(self.deepest, len(self._open))
        self.shape.append((tag, len(self._open)))
        names = [name for name, _ in attrs]
        if len(names) != len({*names}):
            self._malformed(f"<{tag[:20]}> has an attribute twice")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()
            self._malformed(f"<{tag[:20]}/> is not closed by its slash")

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self._malformed(f"</{tag[:20]}> closes {'nothing' if not self._open else f'<{self._open[-1][:20]}>'}")
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def close(self) -> None:
        super().close()
        if self._open:
            self._malformed(f"<{self._open[-1][:20]}> is not closed")

    def _malformed(self, detail: str) -> None:
        if not any(found.rule == "malformed" for found in self.findings):
            self.findings.append(Finding("malformed", None, detail))
