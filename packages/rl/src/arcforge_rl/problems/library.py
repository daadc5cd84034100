"""Functions with doctests in the running Python's standard library."""

from __future__ import annotations

import ast
import functools
import io
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from arcforge_core.data.sources.functions import parse_quietly
from arcforge_core.data.sources.readers import Unreadable, read_text, walk
from arcforge_core.data.sources.text import NOT_THE_LIBRARY

PROMPT = ">>> "
MOST_LINES, MOST_CHARACTERS = 60, 6000


@dataclass(frozen=True)
class Function:
    """One function or method.

    Attributes:
        module: path of its file below the library, e.g. ``json/decoder.py``.
        name: qualified name, including enclosing classes.
        node: syntax tree of the function.
        source: text of the whole file.
        docstring: the cleaned docstring.
    """

    module: str
    name: str
    node: ast.FunctionDef
    source: str
    docstring: str

    @property
    def lines(self) -> list[str]:
        """The lines of the file with line ends, split as the parser counts them."""
        return io.StringIO(self.source, newline=None).readlines()

    @property
    def text(self) -> str:
        """The dedented function without decorators."""
        return textwrap.dedent("".join(self.lines[self.node.lineno - 1 : self.node.end_lineno]))

    @property
    def head(self) -> str:
        """The dedented function up to the end of its docstring."""
        end = self.node.body[0].end_lineno or self.node.lineno
        return textwrap.dedent("".join(self.lines[self.node.lineno - 1 : end]))

    def replaced(self, written: str) -> str:
        """Returns the file with the function replaced by `written`, at the same indentation."""
        lines = self.lines
        margin = " " * self.node.col_offset
        body = textwrap.indent(textwrap.dedent(written).rstrip() + "\n", margin)
        return "".join(lines[: self.node.lineno - 1]) + body + "".join(lines[self.node.end_lineno or 0 :])


@functools.cache
def functions_with_doctests() -> tuple[Function, ...]:
    """Returns the functions that are short enough for one answer, in the order of their files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[Function] = []
    for path in walk(root, NOT_THE_LIBRARY):
        if path.suffix == ".py":
            try:
                found += _functions(path.relative_to(root).as_posix(), read_text(path))
            except Unreadable:
                continue  # the library's test files in other encodings
    return tuple(found)


def find_function(module: str, name: str) -> Function | None:
    """Returns the function of that name, or None."""
    return next((f for f in functions_with_doctests() if (f.module, f.name) == (module, name)), None)


def _functions(module: str, source: str) -> Iterator[Function]:
    tree = parse_quietly(source) if PROMPT in source else None
    seen: set[str] = set()
    for name, node in _definitions(tree, ""):
        docstring = ast.get_docstring(node)
        long = (node.end_lineno or 0) - node.lineno >= MOST_LINES
        if docstring is None or PROMPT not in docstring or long or len(node.body) < 2 or name in seen:
            continue
        seen.add(name)
        function = Function(module, name, node, source, docstring)
        if len(function.text) <= MOST_CHARACTERS and function.text.startswith("def "):
            yield function


def _definitions(node: ast.AST | None, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node) if node else ():
        if isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
