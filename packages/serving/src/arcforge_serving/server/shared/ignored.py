"""Fields of requests that have no effect: accepted, named in a header of the answer, and counted.

A field is declared with `ignored` or, where clients may rely on it, with `Refused`. Unknown fields are refused at the
top of a request and ignored inside its messages and tools (`OpenBody`), where clients send back whatever servers wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, NoReturn

from fastapi import Request
from pydantic import BaseModel, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from arcforge_serving.server.gate.record import record_of
from arcforge_serving.server.shared.state import ServerState

MARK = "ignored: "
PRINTABLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
MOST = 20
"""Names in a header."""


class Ignored(NamedTuple):
    """A field without effect.

    Attributes:
        name: its path in the request, without positions in lists.
        label: the same for metrics, with ``*`` for names that the client made up.
    """

    name: str
    label: str


def ignored(why: str, alias: str | None = None) -> Any:
    """Returns the default of an optional field that is accepted without effect."""
    return Field(default=None, alias=alias, description=MARK + why)


def is_ignored(field: FieldInfo) -> bool:
    return (field.description or "").startswith(MARK)


@dataclass(frozen=True)
class Refused:
    """Annotation of a field that some API has and this server does not serve; null counts as not given.

    Attributes:
        why: the error.
    """

    why: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def refuse(value: Any) -> NoReturn:
            raise PydanticCustomError("refused", "{why}", {"why": self.why})

        return core_schema.no_info_plain_validator_function(refuse)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "null"}


def ignored_fields(body: BaseModel) -> list[Ignored]:
    """Returns the fields without effect that a request has, each once, in the order of its text."""
    return list(dict.fromkeys(without_effect(body)))


@cache
def _declared(kind: type[BaseModel]) -> dict[str, tuple[str, bool]]:
    """Returns the fields of a model: the name that clients use, and whether it has an effect."""
    return {name: (field.alias or name, not is_ignored(field)) for name, field in kind.model_fields.items()}


def without_effect(part: BaseModel) -> Iterator[Ignored]:
    """Returns the fields without effect of a part, named from there on; the same one as often as it is given."""
    declared = _declared(type(part))
    for name in part.model_fields_set & declared.keys():
        shown, has_effect = declared[name]
        if not has_effect:
            yield Ignored(shown, shown)
            continue
        for found in _inside(getattr(part, name)):
            yield Ignored(f"{shown}.{found.name}", f"{shown}.{found.label}")
    for name in part.model_extra or ():
        yield Ignored(name if PRINTABLE.fullmatch(name) else "?", "*")


class WalkedOnce(BaseModel):
    """A part that several requests share."""

    @cached_property
    def without_effect(self) -> tuple[Ignored, ...]:
        """Its fields without effect."""
        return tuple(without_effect(self))


def _inside(value: Any) -> Iterator[Ignored]:
    if isinstance(value, BaseModel):
        yield from value.without_effect if isinstance(value, WalkedOnce) else without_effect(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from _inside(inner)


def note_ignored(request: Request, server: ServerState, found: Iterable[Ignored]) -> None:
    """Names fields without effect in the answer's header and in the log, and counts them.

    Args:
        request: the HTTP request.
        server: has the metrics.
        found: the fields.
    """
    record, found = record_of(request.scope), list(found)
    record.ignored = sorted({*record.ignored, *(each.name for each in found)})[:MOST]
    for label in sorted({each.label for each in found}):
        server.metrics.ignored(label)
