"""Functions of the running Python's standard library that have doctests."""

from __future__ import annotations

import ast
import functools
import io
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from arcforge_core.data.functions import parse_quietly
from arcforge_core.data.readers import Unreadable, read_text, walk
from arcforge_core.data.sources import NOT_THE_LIBRARY, TEST_FOLDERS

PROMPT = ">>> "
MOST_LINES, MOST_CHARACTERS = 60, 6000


@dataclass(frozen=True)
class Function:
    """One function or method.

    Attributes:
        module: path of its file below the library, e.g. ``json/decoder.py``.
        name: its name, with those of the classes around it.
        node: its syntax tree.
        source: text of the whole file.
        docstring: cleaned.
    """

    module: str
    name: str
    node: ast.FunctionDef
    source: str
    docstring: str

    @property
    def lines(self) -> list[str]:
        """The lines of the file, with their ends, as the parser counts them."""
        return io.StringIO(self.source, newline=None).readlines()

    @property
    def text(self) -> str:
        """The function at the margin, decorators left out."""
        return textwrap.dedent("".join(self.lines[self.node.lineno - 1 : self.node.end_lineno]))

    @property
    def head(self) -> str:
        """The function up to the end of its docstring, at the margin."""
        end = self.node.body[0].end_lineno or self.node.lineno
        return textwrap.dedent("".join(self.lines[self.node.lineno - 1 : end]))

    def replaced(self, written: str) -> str:
        """Returns the file with `written` in the function's place, indented as it stood."""
        lines = self.lines
        margin = " " * self.node.col_offset
        body = textwrap.indent(textwrap.dedent(written).rstrip() + "\n", margin)
        return "".join(lines[: self.node.lineno - 1]) + body + "".join(lines[self.node.end_lineno or 0 :])


@functools.cache
def functions_with_doctests() -> tuple[Function, ...]:
    """Returns them in the order of their files; only those short enough to be written in one answer."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[Function] = []
    for path in walk(root, (*NOT_THE_LIBRARY, *TEST_FOLDERS)):
        if path.suffix == ".py":
            try:
                found += _functions(path.relative_to(root).as_posix(), read_text(path))
            except Unreadable:
                continue  # the library's own samples of other encodings
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
