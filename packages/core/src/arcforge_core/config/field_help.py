"""The text of ``--help FIELD``."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from arcforge_core.config.docs import default_text, field_docs
from arcforge_core.config.fields import closest
from arcforge_core.config.help import groups_of, option_lines
from arcforge_core.config.schema import ComponentConfig
from arcforge_core.config.validate import type_words
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry


def render_field(config_name: str, schema: type[Any], name: str) -> str:
    """Returns the help of one field, section or group.

    Args:
        config_name: the job.
        schema: its root dataclass.
        name: as on the command line, e.g. ``trainer.minutes``, ``trainer`` or ``attention``.

    Raises:
        ConfigError: the job has no such field.
    """
    blocks = []
    if name in groups_of(config_name) and (options := option_lines(name)):
        default = groups_of(config_name)[name]
        blocks.append("\n".join([f"{name} (default {default}): write {name}=OPTION", *options]))
    for owner, holder, field in _holders(schema, name):
        blocks += [f"{owner}{line}" for line in field_lines(holder, field, name)]
    if not blocks:
        meant = closest(config_name, schema, name)
        raise ConfigError("--help", name, f"no such field{f'; did you mean {meant!r}?' if meant else ''}")
    return "\n".join(dict.fromkeys(blocks))


def _holders(schema: type[Any], name: str) -> list[tuple[str, type[Any], str]]:
    """Returns (component, dataclass, field) for every dataclass that has the field; components are those of a group."""
    *sections, field = name.split(".")
    found: list[tuple[str, type[Any]]] = [("", schema)]
    for section in sections:
        inner = []
        for owner, holder in found:
            hint = get_type_hints(holder).get(section)
            if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
                continue
            kind = [c for c in registry() if c.kind == section] if issubclass(hint, ComponentConfig) else []
            inner += [(f"{section}={c.name}: ", c.load_schema()) for c in kind] or [(owner, hint)]
        found = inner
    return [(owner, holder, field) for owner, holder in found if field in get_type_hints(holder)]


def field_lines(holder: type[Any], field: str, name: str) -> list[str]:
    """Returns a line for a field, or one for each field of a section."""
    hint = get_type_hints(holder)[field]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if issubclass(hint, ComponentConfig):
            return []
        return [
            line for inner in dataclasses.fields(hint) for line in field_lines(hint, inner.name, f"{name}.{inner.name}")
        ]
    [default] = [default_text(each) for each in dataclasses.fields(holder) if each.name == field]
    text = field_docs(holder).get(field, "")
    return [f"{name}: {type_words(hint)}, default {default}".replace("`", "") + (f". {text}" if text else "")]
