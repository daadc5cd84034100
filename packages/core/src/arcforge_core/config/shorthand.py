"""Options that may be written without their section, as those of suites in ``arcforge-eval``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from arcforge_core.config.foreign import FOREIGN
from arcforge_core.config.help import groups_of
from arcforge_core.plugins.loader import registry


def written_out(config_name: str, schema: type[Any], overrides: Sequence[str]) -> list[str]:
    """Returns the overrides with the section ``schema.shorthand`` before the fields of its component.

    Names that other programs use for something else are those of the chosen component only. A schema without
    `shorthand`, and its own fields, stay unchanged.
    """
    kind = getattr(schema, "shorthand", None)
    if kind is None:
        return list(overrides)
    default = groups_of(config_name).get(kind)
    option = next((o.partition("=")[2] for o in overrides if o.startswith(f"{kind}=")), default)
    fields = {c.name: {f.name for f in dataclasses.fields(c.load_schema())} for c in registry() if c.kind == kind}
    names = fields.get(option or "", set()) | set().union(*fields.values()) - FOREIGN.keys()
    names -= {"name", *(field.name for field in dataclasses.fields(schema))}
    return [f"{kind}.{o}" if "=" in o and o.partition("=")[0] in names else o for o in overrides]
