"""The base of request bodies, and types of their fields."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError, to_json

MOST_STOPS, LONGEST_STOP = 16, 1000


def encodable(text: str) -> str:
    """Refuses lone surrogates, which JSON can write and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds a lone surrogate, which is no character") from error
    return text


def returnable(given: dict[str, Any]) -> dict[str, Any]:
    """Refuses what a reply that holds it could not be written with."""
    try:
        to_json({"metadata": given})
        json.dumps(given, allow_nan=False)
    except ValueError as error:
        accepted = "must be JSON without NaN and lone surrogates, at most 250 levels deep"
        raise PydanticCustomError("not_returnable", accepted) from error
    return given


Text = Annotated[str, AfterValidator(encodable)]
Metadata = Annotated[dict[str, Any], AfterValidator(returnable)]
"""Of the client, returned with the reply."""
StopString = Annotated[Text, Field(min_length=1, max_length=LONGEST_STOP)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Body(BaseModel):
    """A request, or a part of one. Unknown fields are refused; null counts as not given."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given


class OpenBody(Body):
    """A part inside of messages and tools, where clients send back what other servers wrote: unknown fields are ignored
    and counted (`shared/ignored.py`)."""

    model_config = ConfigDict(extra="allow")
