"""An option that is accepted but has no effect is a bug: every field of every schema is read somewhere.

By name, in the code of the package that owns the schema (core's are contracts, which all packages read). A check in
``__post_init__`` does not count.
"""

import ast
import dataclasses
import functools
import inspect
from pathlib import Path
from typing import get_type_hints

import pytest

from arcforge_core.config.docs import roots
from arcforge_core.plugins.loader import registry

PACKAGES = Path(__file__).parents[2] / "packages"

EXEMPT = {
    "name": "chooses the component; a walk over all components would find it anywhere",
    "head": "muon.py reads it as getattr(config, role) over the roles",
    **dict.fromkeys(
        ("ttft_ms", "tpot_ms", "e2e_ms"), "bench/figures.py reads them as getattr(slo, name) over LATENCIES"
    ),
    "toolbox": "the old name of PlayConfig.environment; __post_init__ translates it",
    "router": "muon.py reads it as getattr(config, role) over the roles",
}
"""Field -> why its reading is not looked for."""


def our_package(schema):
    """Returns the package folder of a first-party schema, or None."""
    distribution = schema.__module__.split(".")[0].removeprefix("arcforge_")
    return distribution if (PACKAGES / distribution / "src" / f"arcforge_{distribution}").is_dir() else None


@functools.cache
def names_read(package):
    """Returns the attribute names that a package's code reads, ``getattr`` with a literal included."""
    found = set()
    for path in PACKAGES.glob(f"{'*' if package == 'core' else package}/src/**/*.py"):
        for node in without_checks(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return found


def without_checks(node):
    """Walks a tree and leaves out ``__post_init__``, where fields are only checked."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.FunctionDef) and child.name == "__post_init__"):
            yield from without_checks(child)


def sections(schema):
    """Yields a schema and the sections inside it."""
    yield schema
    for hint in get_type_hints(schema).values():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from sections(hint)


def owned_fields():
    """Returns every (package, class, field) once, by the class that adds the field."""
    schemas = [*roots().values(), *(component.load_schema() for component in registry())]
    found = {}
    for schema in {section for root in schemas for section in sections(root)}:
        for field in dataclasses.fields(schema):
            owner = [cls for cls in schema.__mro__ if field.name in inspect.get_annotations(cls)][-1]
            package = our_package(owner)
            if package and field.name not in EXEMPT:
                found[package, owner.__name__, field.name] = None
    return sorted(found)


@pytest.mark.parametrize(("package", "owner", "field"), owned_fields())
def test_field_is_read(package, owner, field):
    assert field in names_read(package), f"{owner}.{field} is accepted and has no effect: nothing reads it"


def test_an_unread_field_would_be_found():
    assert "no_such_field_anywhere" not in names_read("core")
    assert "hidden_size" in names_read("core")
    code = "class C:\n    def __post_init__(self):\n        self.only_checked\n    def f(self):\n        self.used"
    seen = {node.attr for node in without_checks(ast.parse(code)) if isinstance(node, ast.Attribute)}
    assert seen == {"used"}
