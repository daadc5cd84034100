"""What the dialects share: their requests as chat requests, and a chat's parts as bits of one kind each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from arcforge_serving.server.chat import ChatRequest
from arcforge_serving.server.reply import Json

Kind = Literal["reasoning", "text", "call"]


@dataclass(frozen=True)
class Bit:
    """What came of one kind.

    Attributes:
        kind: of what.
        text: the next characters; of a call, of its arguments.
        call: index of the call.
        id, name: of a call, with its first bit.
    """

    kind: Kind
    text: str
    call: int = -1
    id: str = ""
    name: str = ""

    @property
    def place(self) -> tuple[Kind, int]:
        """What it belongs to: neighbours of one place are one block."""
        return self.kind, self.call


def bits(parts: Iterable[Json]) -> Iterator[Bit]:
    """Returns the deltas in the parts of a chat's choice (`ChatWriter.parts`), in order."""
    for delta in (part["delta"] for part in parts):
        if reasoning := delta.get("reasoning_content"):
            yield Bit("reasoning", reasoning)
        if content := delta.get("content"):
            yield Bit("text", content)
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            yield Bit("call", function["arguments"], call["index"], call.get("id", ""), function.get("name", ""))


def chat_request(fields: Json) -> ChatRequest:
    """Returns the chat request that another dialect's request amounts to.

    Raises:
        RequestValidationError: a field has no place in a chat; it is named as the chat has it.
    """
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from error


def without_none(**fields: Any) -> Json:
    """Returns the fields that are given."""
    return {name: value for name, value in fields.items() if value is not None}
