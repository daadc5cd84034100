"""Bug injection by syntax trees of tree-sitter, for languages whose operators are C's."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arcforge_core.errors import ArcforgeError
from arcforge_rl.swe.languages.base import Bug

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "===": "!==", "!==": "===", "&&": "||",
    "||": "&&", "+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "<<": ">>", ">>": "<<", "&": "|", "|": "&",
}  # fmt: skip
KINDS = {
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!=", "===", "!=="), "comparison"),
    **dict.fromkeys(("&&", "||"), "condition"),
}
"""Operator -> kind of its change; others are arithmetic."""
SMALL = 1000
"""Whole numbers below it are changed by one."""


@dataclass(frozen=True)
class Grammar:
    """Names of a grammar's nodes.

    Attributes:
        module: wheel of the grammar.
        factory: its function that returns the language.
        functions: definitions of functions, with a field ``body``.
        names: kinds of nodes that name a function, the first one below its other fields.
        binary: expressions with the fields ``left``, ``operator`` and ``right``.
        unary: expressions with the fields ``operator`` and ``argument`` or ``operand``.
        numbers: literals of whole numbers.
        conditions: statements with a field ``condition``, and the text of a condition that never holds.
        calls: calls with a field ``arguments``.
        removed: statements that can be left out.
        truth: literal -> its opposite.
    """

    module: str
    factory: str = "language"
    functions: tuple[str, ...] = ()
    names: tuple[str, ...] = ("identifier", "property_identifier", "field_identifier")
    binary: tuple[str, ...] = ("binary_expression",)
    unary: tuple[str, ...] = ("unary_expression",)
    numbers: tuple[str, ...] = ("number",)
    conditions: Mapping[str, str] = field(default_factory=lambda: {"if_statement": "(false)"})
    calls: tuple[str, ...] = ("call_expression",)
    removed: tuple[str, ...] = ("expression_statement",)
    truth: Mapping[str, str] = field(default_factory=lambda: {"true": "false", "false": "true"})

    def parser(self) -> Parser:
        """Returns a parser.

        Raises:
            ArcforgeError: a wheel is missing.
        """
        try:
            tree_sitter = importlib.import_module("tree_sitter")
            language = getattr(importlib.import_module(self.module), self.factory)()
        except ImportError as error:
            raise ArcforgeError(f"{error.name} is not installed: pip install 'arcforge-rl[swe]'") from error
        parser: Parser = tree_sitter.Parser(tree_sitter.Language(language))
        return parser


def syntax_bugs(grammar: Grammar, text: str, seed: str) -> Iterator[Bug]:
    """Yields the faults that can be put into a file's functions, in an order that the seed decides.

    A change that makes a syntax error is left out.

    Raises:
        ArcforgeError: a wheel is missing.
    """
    parser, data = grammar.parser(), text.encode()
    tree = parser.parse(data)
    flaws = _errors(tree.root_node)
    found: dict[tuple[int, int, bytes], tuple[str, str, int]] = {}
    for function in _below(tree.root_node):
        body = function.child_by_field_name("body") if function.type in grammar.functions else None
        if body is not None:
            name = _name(grammar, function)
            for node in _below(body):
                for kind, start, end, new in _changes(grammar, node, data):
                    found[start, end, new] = (kind, name, node.start_point[0] + 1)
    order = list(found.items())
    random.Random(seed).shuffle(order)
    for (start, end, new), (kind, name, line) in order:
        changed = data[:start] + new + data[end:]
        if changed != data and _errors(parser.parse(changed).root_node) <= flaws:
            yield Bug(kind, name, changed.decode(), line)


def _below(node: Node) -> Iterator[Node]:
    left = [node]
    while left:
        one = left.pop()
        yield one
        left += reversed(one.children)


def _errors(root: Node) -> int:
    return sum(node.is_error or node.is_missing for node in _below(root)) if root.has_error else 0


def _name(grammar: Grammar, function: Node) -> str:
    body = function.child_by_field_name("body")
    head = (node for child in function.children if child != body for node in _below(child))
    named = next((node for node in head if node.type in grammar.names), None)
    return named.text.decode(errors="replace") if named is not None and named.text else ""


def _changes(grammar: Grammar, node: Node, data: bytes) -> Iterator[tuple[str, int, int, bytes]]:
    def text(one: Any) -> str:
        return data[one.start_byte : one.end_byte].decode(errors="replace")

    if node.type in grammar.binary:
        operator = node.child_by_field_name("operator")
        if operator is not None and (new := SWAPS.get(text(operator))):
            yield KINDS.get(text(operator), "arithmetic"), operator.start_byte, operator.end_byte, new.encode()
    elif node.type in grammar.unary:
        operator = node.child_by_field_name("operator") or node.children[0]
        if text(operator) == "!":
            yield "negation", operator.start_byte, operator.end_byte, b""
    elif node.type in grammar.numbers:
        if text(node).isdigit() and int(text(node)) < SMALL and not (len(text(node)) > 1 and text(node)[0] == "0"):
            yield "constant", node.start_byte, node.end_byte, str(int(text(node)) + 1).encode()
    elif node.type in grammar.truth and not node.children:
        yield "constant", node.start_byte, node.end_byte, grammar.truth[node.type].encode()
    elif node.type in grammar.conditions:
        condition = node.child_by_field_name("condition")
        if condition is not None and node.child_by_field_name("alternative") is None:
            yield "branch", condition.start_byte, condition.end_byte, grammar.conditions[node.type].encode()
    elif node.type in grammar.removed:
        yield "omission", node.start_byte, node.end_byte, b"" if text(node).endswith(";") else b";"
    elif node.type in grammar.calls:
        arguments = node.child_by_field_name("arguments")
        given = [] if arguments is None else arguments.named_children
        if len(given) == 2 and text(given[0]) != text(given[1]):
            between = data[given[0].end_byte : given[1].start_byte].decode(errors="replace")
            swapped = text(given[1]) + between + text(given[0])
            yield "arguments", given[0].start_byte, given[1].end_byte, swapped.encode()
