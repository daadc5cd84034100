"""Extracts single functions from Python source."""

from __future__ import annotations

import ast
import io
import textwrap
import warnings
from collections.abc import Iterator


def functions_in(source: str) -> Iterator[str]:
    """Yields every function and method of a Python file, dedented and without its docstring.

    Skips decorators, ``async`` functions, functions with only a docstring, and those with lines to the left of their
    ``def``. A text that is not Python yields none.
    """
    tree = parse_quietly(source)
    lines = io.StringIO(source, newline=None).readlines()  # the parser's line numbers; form feeds do not end lines
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef) and (text := _at_the_margin(node, lines)) is not None:
            yield text


def parse_quietly(source: str) -> ast.Module | None:
    """Parses Python source without warnings about invalid escapes; returns None if it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # null characters, nesting beyond the stack
        return None


def _at_the_margin(node: ast.FunctionDef, lines: list[str]) -> str | None:
    assert node.end_lineno is not None
    kept = lines[node.lineno - 1 : node.end_lineno]
    if ast.get_docstring(node, clean=False) is not None:
        docstring, *body = node.body
        if not body or body[0].lineno <= (docstring.end_lineno or 0):
            return None
        after = lines[docstring.end_lineno : node.end_lineno]
        while not after[0].strip():
            del after[0]
        kept = lines[node.lineno - 1 : docstring.lineno - 1] + after
    text = textwrap.dedent("".join(kept)).rstrip() + "\n"
    return text if text.startswith("def ") else None  # not if a string's lines are left of the function
