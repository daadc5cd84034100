"""Bug injection into Python: one small fault in one function, such as people make."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator

from arcforge_rl.swe.languages.base import Bug

SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is",
    "in": "not in", "not in": "in",
}  # fmt: skip
COMPARED = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"),
}  # fmt: skip


def bugs(text: str, seed: str) -> Iterator[Bug]:
    """Yields the faults that can be put into a file's functions, in an order that the seed decides.

    A file that cannot be parsed has none.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    starts = [0]
    for line in text.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    data = text.encode()

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    found: list[tuple[str, str, int, int, bytes, int]] = []
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]:
        for node in (part for statement in function.body for part in ast.walk(statement)):
            for kind, start, end, new in _changes(node, data, at):
                found.append((kind, function.name, start, end, new, getattr(node, "lineno", function.lineno)))
    random.Random(seed).shuffle(found)
    for kind, name, start, end, new, number in dict.fromkeys(found):
        changed = data[:start] + new + data[end:]
        try:
            ast.parse(changed)
        except (SyntaxError, ValueError):
            continue
        yield Bug(kind, name, changed.decode(), number)


def _changes(node: ast.AST, data: bytes, at: object) -> Iterator[tuple[str, int, int, bytes]]:
    assert callable(at)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = node.left, node.comparators[0]
        start, end = at(left.end_lineno, left.end_col_offset), at(right.lineno, right.col_offset)
        old = COMPARED[type(node.ops[0])].encode()
        between = data[start:end]
        if between.count(old) == 1:
            yield "comparison", start, end, between.replace(old, SWAPS[old.decode()].encode())
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        old_sign, new_sign = ARITHMETIC[type(node.op)]
        start, end = at(node.left.end_lineno, node.left.end_col_offset), at(node.right.lineno, node.right.col_offset)
        between = data[start:end]
        if between.count(old_sign.encode()) == 1:
            yield "arithmetic", start, end, between.replace(old_sign.encode(), new_sign.encode())
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        first, second = node.values
        start, end = at(first.end_lineno, first.end_col_offset), at(second.lineno, second.col_offset)
        old, new = (b"and", b"or") if isinstance(node.op, ast.And) else (b"or", b"and")
        if data[start:end].count(old) == 1:
            yield "condition", start, end, data[start:end].replace(old, new)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "negation", at(node.lineno, node.col_offset), at(node.operand.lineno, node.operand.col_offset), b""
    elif isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value < 1000:
        start, end = at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)
        if data[start:end].isdigit():
            yield "constant", start, end, str(node.value + 1).encode()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        start, end = at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)
        yield "constant", start, end, str(not node.value).encode()
    elif isinstance(node, ast.If) and not node.orelse:
        test = node.test
        start, end = at(test.lineno, test.col_offset), at(test.end_lineno, test.end_col_offset)
        yield "branch", start, end, b"False"
    elif isinstance(node, ast.Call) and len(node.args) == 2 and not any(isinstance(a, ast.Starred) for a in node.args):
        one, two = [data[at(a.lineno, a.col_offset) : at(a.end_lineno, a.end_col_offset)] for a in node.args]
        start, end = (
            at(node.args[0].lineno, node.args[0].col_offset),
            at(node.args[1].end_lineno, node.args[1].end_col_offset),
        )
        between = data[
            at(node.args[0].end_lineno, node.args[0].end_col_offset) : at(node.args[1].lineno, node.args[1].col_offset)
        ]
        if one != two:
            yield "arguments", start, end, two + between + one
