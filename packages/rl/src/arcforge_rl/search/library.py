"""The corpus that comes with Python: a page for each public module, class and function of its standard library.

Nothing of the library written in Python is imported; its files are parsed. Modules in C are imported and asked for
their docstrings. The pages depend on the version of Python alone.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcforge_core.data.sources.functions import parse_quietly
from arcforge_core.data.sources.readers import Unreadable, read_text, walk
from arcforge_rl.search.pages import ALIASES, KIND, Page, page_of

SKIPPED = (
    "test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages", "ensurepip", "turtledemo",
    "encodings", "pydoc_data", "__pycache__", "config", "lib-dynload",
)  # fmt: skip
IN_C = (
    "array", "atexit", "binascii", "cmath", "errno", "faulthandler", "gc", "itertools", "marshal", "math", "select",
    "sys", "time", "unicodedata", "zlib",
)  # fmt: skip
LONGEST = 4000
"""Characters of a docstring on a page."""
MOST_USED = 12
"""Names that a function's page lists as used by it."""
ENDINGS = ("Error", "Exception", "Warning")


@dataclass
class LibraryModule:
    """A parsed module: its tree, and what its names mean, by name."""

    name: str
    tree: ast.Module
    is_package: bool
    names: dict[str, str] = field(default_factory=dict)
    exported: frozenset[str] = frozenset()

    def meaning(self, node: ast.expr) -> str:
        """Returns the full name that an expression names; empty if it names nothing known."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        root = self.names.get(node.id) or (node.id if hasattr(builtins, node.id) else "")
        return ".".join([root, *reversed(parts)]) if root else ""


def library_pages(root: Path | None = None, in_c: Sequence[str] = IN_C) -> list[Page]:
    """Returns pages about modules, classes and functions, by title.

    Args:
        root: folder of the modules written in Python; None: the running Python's standard library.
        in_c: modules that are imported.
    """
    modules = list(_modules(root or Path(sysconfig.get_paths()["stdlib"])))
    pages = [page for module in modules for page in _pages_of(module)]
    for name in in_c:
        try:
            found = importlib.import_module(name)
        except ImportError:
            continue  # built without it
        pages += _inspected(name, vars(found), inspect.getdoc(found) or "", f"{name}.")
    pages += _inspected("builtins", vars(builtins), inspect.getdoc(builtins) or "", "")
    titles = {page.title: page for page in pages}
    also = _exported(modules, titles)
    return [_named(titles[title], also.get(title, ())) for title in sorted(titles)]


def _named(page: Page, exported: Iterable[str]) -> Page:
    """Returns a page with the names under which other modules show it, and its name without that of the module."""
    short = page.title.rpartition(".")[2]
    others = [name for name in (*exported, short) if name != page.title]
    if not others or page.facts[KIND] == ("module",):
        return page
    facts = {KIND: page.facts[KIND], ALIASES: others, **{label: v for label, v in page.facts.items() if label != KIND}}
    return page_of(page.title, facts, page.prose, page.group)


def _modules(root: Path) -> Iterator[LibraryModule]:
    for path in walk(root, SKIPPED):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        parts = parts[:-1] if is_package else parts
        if path.suffix != ".py" or not parts or any(not part.isidentifier() or part.startswith("_") for part in parts):
            continue
        try:
            tree = parse_quietly(read_text(path))
        except Unreadable:
            continue  # the library's files in other encodings
        if tree is not None:
            yield _read(LibraryModule(".".join(parts), tree, is_package))


def _read(module: LibraryModule) -> LibraryModule:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                module.names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            source = _source(module, node)
            module.names.update({alias.asname or alias.name: f"{source}.{alias.name}" for alias in node.names})
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            module.names[node.name] = f"{module.name}.{node.name}"
        elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            module.exported |= {
                one.value
                for one in ast.walk(node.value)
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
    return module


def _source(module: LibraryModule, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _exported(modules: list[LibraryModule], titles: dict[str, Page]) -> dict[str, list[str]]:
    """Returns title -> names under which other modules show what the page is about."""
    found: dict[str, list[str]] = {}
    for module in modules:
        for name, meaning in module.names.items():
            shown = name in module.exported or meaning.startswith(f"{module.name}.")
            if shown and meaning in titles and meaning != f"{module.name}.{name}" and not name.startswith("_"):
                found.setdefault(meaning, []).append(f"{module.name}.{name}")
    return {title: sorted(names) for title, names in found.items()}


def _pages_of(module: LibraryModule) -> Iterator[Page]:
    group = module.name.split(".")[0]
    imports = {
        name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [_source(module, node)])
        if name and not any(part.startswith("_") for part in name.split("."))
    }
    facts = {KIND: ["module"], "Part of": [module.name.rpartition(".")[0]] if "." in module.name else []}
    public = [n for n in module.tree.body if isinstance(n, DEFINITIONS) and not n.name.startswith("_")]
    contents = "\n".join(f"{node.name} - {_first(_doc(node))}".rstrip(" -") for node in public)
    prose = "\n\n".join(filter(None, [_doc(module.tree), contents]))
    yield page_of(module.name, {**facts, "Imports": sorted(imports - {module.name})}, prose, group)
    for node in public:
        yield (
            _class_page(module, node, group) if isinstance(node, ast.ClassDef) else _function_page(module, node, group)
        )


DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _class_page(module: LibraryModule, node: ast.ClassDef, group: str) -> Page:
    bases = [name for base in node.bases if (name := module.meaning(base)) not in ("", "object")]
    methods = [n for n in node.body if isinstance(n, DEFINITIONS[1:]) and not n.name.startswith("_")]
    kind = "exception" if any(name.endswith(ENDINGS) for name in bases) else "class"
    facts = {KIND: [kind], "Defined in": [module.name], "Base classes": bases, "Methods": [n.name for n in methods]}
    listed = "\n".join(f"{n.name} - {_first(_doc(n))}" for n in methods if _doc(n))
    return page_of(f"{module.name}.{node.name}", facts, "\n\n".join(filter(None, [_doc(node), listed])), group)


def _function_page(module: LibraryModule, node: ast.FunctionDef | ast.AsyncFunctionDef, group: str) -> Page:
    given = node.args
    named = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    raised = [n.exc.func if isinstance(n.exc, ast.Call) else n.exc for n in ast.walk(node) if _raises(n)]  # type: ignore[attr-defined]
    used = [module.meaning(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)]
    own = f"{module.name}.{node.name}"
    facts = {
        KIND: ["function"],
        "Defined in": [module.name],
        "Parameters": named,
        "Raises": list(dict.fromkeys(name for one in raised if (name := module.meaning(one)).endswith(ENDINGS))),
        "Uses": [name for name in dict.fromkeys(used) if _public(name) and name != own][:MOST_USED],
    }
    return page_of(own, facts, _doc(node), group)


def _public(name: str) -> bool:
    return "." in name and not any(part.startswith("_") for part in name.split("."))


def _raises(node: ast.AST) -> bool:
    return isinstance(node, ast.Raise) and node.exc is not None


def _inspected(module: str, names: Mapping[str, Any], doc: str, prefix: str) -> Iterator[Page]:
    yield page_of(module, {KIND: ["module"]}, doc[:LONGEST], module)
    for name, made in sorted(names.items()):
        if name.startswith("_") or not callable(made):
            continue
        facts = {KIND: ["function"], "Defined in": [module]}
        if inspect.isclass(made):
            if made.__name__ != name:
                continue  # another name of a page, such as IOError
            wrong = issubclass(made, BaseException)
            bases = [_full(base) for base in made.__bases__ if base is not object]
            facts = {KIND: ["exception" if wrong else "class"], "Defined in": [module], "Base classes": bases}
        yield page_of(f"{prefix}{name}", facts, (inspect.getdoc(made) or "")[:LONGEST], module)


def _full(made: type) -> str:
    return made.__name__ if made.__module__ == "builtins" else f"{made.__module__}.{made.__name__}"


def _doc(node: ast.AST) -> str:
    return (ast.get_docstring(node) or "")[:LONGEST]  # type: ignore[arg-type]


def _first(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split())[:120]
