"""Options that may be written without their section, as those of suites in ``arcforge-eval``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from arcforge_core.plugins.loader import registry


def written_out(schema: type[Any], overrides: Sequence[str]) -> list[str]:
    """Returns the overrides with the section ``schema.shorthand`` before the fields of that kind's components.

    A schema without `shorthand`, and its own fields, stay unchanged.
    """
    kind = getattr(schema, "shorthand", None)
    if kind is None:
        return list(overrides)
    schemas = [component.load_schema() for component in registry() if component.kind == kind]
    names = {field.name for component in schemas for field in dataclasses.fields(component)}
    names -= {"name", *(field.name for field in dataclasses.fields(schema))}
    return [f"{kind}.{o}" if "=" in o and o.partition("=")[0] in names else o for o in overrides]
