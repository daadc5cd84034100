"""Shared by the other dialects: their requests as chat requests, and a chat's parts as fragments of one kind each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from arcforge_serving.server.openai.chat_request import ChatRequest
from arcforge_serving.server.shared.usage import Json

Kind = Literal["reasoning", "text", "call"]


@dataclass(frozen=True)
class Fragment:
    """New text of one kind.

    Attributes:
        kind: reasoning, text or call.
        text: the next characters; of a call, of its arguments.
        call: index of the call.
        id, name: of a call, with its first fragment.
    """

    kind: Kind
    text: str
    call: int = -1
    id: str = ""
    name: str = ""

    @property
    def block(self) -> tuple[Kind, int]:
        """The content block that it belongs to."""
        return self.kind, self.call


def fragments(parts: Iterable[Json]) -> Iterator[Fragment]:
    """Returns the deltas in the parts of a chat's choice (`ChatWriter.parts`), in order."""
    for delta in (part["delta"] for part in parts):
        if reasoning := delta.get("reasoning_content"):
            yield Fragment("reasoning", reasoning)
        if content := delta.get("content"):
            yield Fragment("text", content)
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            yield Fragment("call", function["arguments"], call["index"], call.get("id", ""), function.get("name", ""))


def chat_request(fields: Json) -> ChatRequest:
    """Returns the chat request for another dialect's fields.

    Raises:
        RequestValidationError: a field is invalid; it has the chat's name.
    """
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from error


def without_none(**fields: Any) -> Json:
    """Returns the fields that are given."""
    return {name: value for name, value in fields.items() if value is not None}
