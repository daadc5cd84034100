"""Entries of a dict option, such as ``+agents.judge={url: ...}``: each has the fields of one dataclass; torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arcforge_core.errors import ConfigError, nearest

T = TypeVar("T")


def entry_of(schema: type[T], fields: Any, where: str, what: str) -> T:
    """Returns an entry of its fields.

    Args:
        schema: dataclass of the entry.
        fields: an object of it, or a mapping.
        where: option in which they were given.
        what: name of an entry, for errors, as "a service".

    Raises:
        ConfigError: there is no such field, or its value has another type.
    """
    if isinstance(fields, schema):
        return fields
    known = [one.name for one in dataclasses.fields(schema)]  # type: ignore[arg-type]
    if not isinstance(fields, Mapping):
        raise ConfigError(where, fields, f"must have some of the fields {', '.join(known)}")
    for name, value in fields.items():
        if name not in known:
            raise ConfigError(f"{where}.{name}", value, f"{what} has {', '.join(known)}{nearest(str(name), known)}")
    try:
        made: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), fields))
    except OmegaConfBaseException as error:
        raise ConfigError(where, dict(fields), str(error).splitlines()[0]) from error
    assert isinstance(made, schema)
    return made
