"""Writes ``docs/config.md`` from the schemas: ``python -m arcforge_core.config.docs docs/config.md``."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import MISSING

from arcforge_core.config.schema import ComponentConfig
from arcforge_core.config.validate import type_words
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.registry import FIRST_PARTY, Component, JobEntry

HEADER = """\
# Configuration

Written by `python -m arcforge_core.config.docs docs/config.md` from the dataclasses; edit those.
A field is set as `section.field=value` on the command line, a group as `group=option`.
`--cfg job` prints the composed configuration: a command's preset may override a default listed here.
"""


def roots() -> dict[str, type[Any]]:
    """Returns the root dataclass of each job of our distributions, by command."""
    return {job.script: job.load_schema() for job in registry().jobs.values() if _is_ours(job)}


def render() -> str:
    """Returns the page: the commands' own fields, then every component of our distributions by kind."""
    parts = [HEADER]
    for script, root in roots().items():
        parts += [f"## {script}\n", _table(root), *_sections(root)]
    for kind, components in itertools.groupby(filter(_is_ours, registry()), key=lambda component: component.kind):
        members = list(components)
        base = _base(members[0].load_schema())
        parts += [f"## {kind}\n", _table(base, ("name",)), *_sections(base, kind)]
        for component in members:
            schema, wheel = component.load_schema(), component.distribution.split()[0]
            parts.append(f"### {kind}={component.name}\n\n{component.summary} ({wheel}).\n")
            parts += [_table(schema, ("name", *_inherited(schema, base))), *_sections(schema, kind)]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def _is_ours(registered: Component | JobEntry) -> bool:
    return registered.distribution.split()[0] in {f"arcforge-{name}" for name in FIRST_PARTY}


def _base(schema: type[Any]) -> type[Any]:
    """Returns the class whose fields all components of the kind have."""
    return next(cls for cls in schema.__mro__ if ComponentConfig in cls.__bases__)


def _inherited(schema: type[Any], base: type[Any]) -> list[str]:
    """Returns the fields of `base` that `schema` does not change."""
    own = {field.name: default_text(field) for field in dataclasses.fields(schema)}
    return [field.name for field in dataclasses.fields(base) if own[field.name] == default_text(field)]


def _sections(schema: type[Any], path: str = "") -> Iterator[str]:
    """Yields the sections inside `schema` that are not components, e.g. ``model.mtp``."""
    for name, hint in get_type_hints(schema).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and not issubclass(hint, ComponentConfig):
            here = f"{path}.{name}".lstrip(".")
            yield f"### {here}\n\n{inspect.cleandoc(hint.__doc__ or '').splitlines()[0]}\n\n{_table(hint)}"
            yield from _sections(hint, here)
    for field in dataclasses.fields(schema):
        if (value := field.metadata.get("values")) is not None:  # the schema of a dict's values
            here = f"{path}.{field.name}.NAME".lstrip(".")
            yield f"### {here}\n\n{inspect.cleandoc(value.__doc__ or '').splitlines()[0]}\n\n{_table(value)}"


def _table(schema: type[Any], skip: Sequence[str] = ()) -> str:
    docs, hints = field_docs(schema), get_type_hints(schema)
    rows = [
        f"| `{field.name}` | {type_words(hints[field.name])} | {default_text(field)} | {docs.get(field.name, '')} |"
        for field in dataclasses.fields(schema)
        if field.name not in skip
    ]
    return "\n".join(["| field | type | default | |", "| --- | --- | --- | --- |", *rows, ""]) if rows else ""


def default_text(field: dataclasses.Field[Any]) -> str:
    """Returns a field's default as text: a literal in backquotes, ``required``, or a reference to its section."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if dataclasses.is_dataclass(value):
        return "see its section"
    return "required" if value == MISSING else f"`{'null' if value is None else repr(value)}`"


def field_docs(schema: type[Any]) -> dict[str, str]:
    """Returns field -> the string below it in the source; a field redefined without one keeps its base's."""
    found: dict[str, str] = {}
    for cls in reversed(schema.__mro__):
        if dataclasses.is_dataclass(cls):
            found |= {name: text for name, text in _docs_in_source(cls).items() if text or name not in found}
    return found


@functools.cache
def _docs_in_source(cls: type[Any]) -> dict[str, str]:
    [definition] = ast.parse(inspect.getsource(cls)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in itertools.pairwise([*definition.body, ast.Pass()]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            found[field.target.id] = " ".join(str(text.value).split()) if isinstance(text, ast.Constant) else ""
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
