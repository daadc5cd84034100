"""Style sheets and style attributes: selectors and declarations, those that a rule refuses among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import tinycss2
from tinycss2.ast import Node

from arcforge_rl.slides.properties import refusal
from arcforge_rl.slides.values import Refused, words

Specificity = tuple[int, int, int]
PSEUDO = ("first-child", "last-child")
DEEPEST = 8
"""Brackets and blocks inside one another."""
SIDES = ("top", "right", "bottom", "left")


@dataclass(frozen=True)
class Declaration:
    """A property with its value.

    Attributes:
        name: of the longhand, in lower case.
        tokens: the value, without white space.
        important: whether it is.
        fault: why it may not be used; None if it may.
    """

    name: str
    tokens: tuple[Node, ...]
    important: bool = False
    fault: Refused | None = None


@dataclass(frozen=True)
class StyleRule:
    """A selector with its declarations.

    Attributes:
        selector: one, without commas.
        specificity: identifiers, classes and pseudo-classes, elements.
        declarations: in their order.
    """

    selector: str
    specificity: Specificity
    declarations: tuple[Declaration, ...]


def sheet(text: str) -> tuple[list[StyleRule], list[Refused]]:
    """Returns the rules of a style sheet, in their order, and the faults that belong to none."""
    rules: list[StyleRule] = []
    faults: list[Refused] = []
    nodes = tinycss2.parse_stylesheet(text, skip_comments=True, skip_whitespace=True)
    if _too_deep(nodes):
        return [], [Refused("too_large", f"brackets of a style sheet are more than {DEEPEST} inside one another")]
    for node in nodes:
        if node.type == "at-rule":
            remote = node.lower_at_keyword in ("import", "font-face")
            faults.append(Refused("remote_load" if remote else "at_rule", f"@{node.at_keyword[:40]}"))
        elif node.type == "error":
            faults.append(Refused("malformed_css", f"{node.message} in a style sheet"))
        else:
            declared = tuple(declarations(node.content))
            for part in _split(node.prelude):
                try:
                    rules.append(StyleRule(tinycss2.serialize(part).strip(), specificity(part), declared))
                except Refused as refused:
                    faults.append(refused)
    return rules, faults


def declarations(content: str | Sequence[Node]) -> Iterator[Declaration]:
    """Yields the longhands of a block, or of a style attribute."""
    nodes = tinycss2.parse_blocks_contents(content, skip_comments=True, skip_whitespace=True)
    if _too_deep(nodes):
        yield Declaration("", (), fault=Refused("too_large", f"more than {DEEPEST} brackets inside one another"))
        return
    for node in nodes:
        if node.type != "declaration":
            what = "nested rules" if node.type != "error" else node.message
            yield Declaration("", (), fault=Refused("malformed_css", what))
            continue
        tokens = tuple(words(node.value))
        fault = refusal(node.lower_name, tokens)
        if fault is not None:
            yield Declaration(node.lower_name, tokens, node.important, fault)
            continue
        for name, value in longhands(node.lower_name, tokens):
            yield Declaration(name, value, node.important)


def _too_deep(nodes: Sequence[Node]) -> bool:
    left = [(nodes, 0)]
    while left:
        found, depth = left.pop()
        if depth > DEEPEST:
            return True
        for node in found:
            parts = (getattr(node, name, None) for name in ("prelude", "content", "value", "arguments"))
            left += [(part, depth + 1) for part in parts if isinstance(part, list)]
    return False


def longhands(name: str, tokens: tuple[Node, ...]) -> Iterable[tuple[str, tuple[Node, ...]]]:
    """Returns what a property sets; itself for a longhand."""
    if name in ("margin", "padding") and 1 <= len(tokens) <= 4:
        four = [tokens[n] for n in ((0, 0, 0, 0), (0, 1, 0, 1), (0, 1, 2, 1), (0, 1, 2, 3))[len(tokens) - 1]]
        return [(f"{name}-{side}", (token,)) for side, token in zip(SIDES, four, strict=True)]
    if name == "background":
        return [("background-color", tokens)]
    if name == "border":
        return [(f"border-{side}", tokens) for side in SIDES]
    return [(name, tokens)]


def _split(prelude: Sequence[Node]) -> Iterator[list[Node]]:
    part: list[Node] = []
    for token in prelude:
        if token == ",":
            yield part
            part = []
        else:
            part.append(token)
    yield part


def specificity(selector: Sequence[Node]) -> Specificity:
    """Returns the specificity of a selector of elements, classes, identifiers, children and descendants.

    Raises:
        Refused: it has anything else.
    """
    identifiers = classes = elements = 0
    after = ""
    for token in selector:
        if token.type == "hash" and token.is_identifier:
            identifiers += 1
        elif token.type == "ident":
            if after == ":" and token.lower_value not in PSEUDO:
                break
            if after in (".", ":"):
                classes += 1
            else:
                elements += 1
        elif not (
            token.type in ("whitespace", "comment") or token in (".", "*", ">") or (token == ":" and after != ":")
        ):
            break
        after = token.value if token.type == "literal" else ""
    else:
        if identifiers + classes + elements or any(token == "*" for token in selector):
            return identifiers, classes, elements
    raise Refused("selector", tinycss2.serialize(selector)[:60] or "an empty selector")
