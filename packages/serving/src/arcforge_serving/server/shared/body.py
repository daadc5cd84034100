"""The base of request bodies, and types of their fields."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MOST_STOPS, LONGEST_STOP = 16, 1000


def encodable(text: str) -> str:
    """Refuses lone surrogates, which JSON can write and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds a lone surrogate, which is no character") from error
    return text


Text = Annotated[str, AfterValidator(encodable)]
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
