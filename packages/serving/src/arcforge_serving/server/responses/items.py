"""Items of OpenAI's Responses API, as messages of a chat."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from arcforge_serving.server.openai.messages import Part
from arcforge_serving.server.shared.body import OpenBody, Text
from arcforge_serving.server.shared.ignored import ignored
from arcforge_serving.server.shared.memory import Remembered
from arcforge_serving.server.shared.usage import Json

ONE_LIST = "tools have one list"
PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
MODEL_CALLS = "it is always the model"


class InputText(Part):
    """A part of what somebody said."""

    type: Literal["input_text", "output_text", "text"]  # type: ignore[assignment]
    annotations: list[Any] | None = ignored("prompts do not show them")
    logprobs: list[Any] | None = ignored("prompts do not show them")


class MessageItem(Remembered):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | list[InputText]
    id: Text | None = None
    status: Text | None = None
    phase: Text | None = ignored("prompts do not show it")


class CallItem(Remembered):
    """A call of an earlier turn."""

    type: Literal["function_call"]
    call_id: Text
    name: Text
    arguments: Text
    id: Text | None = None
    status: Text | None = None
    namespace: Text | None = ignored(ONE_LIST)
    caller: dict[str, Any] | None = ignored(MODEL_CALLS)
    asynchronous: bool | None = ignored("results come with a later request", alias="async")


class ResultItem(Remembered):
    """What a call has given."""

    type: Literal["function_call_output"]
    call_id: Text | None = None
    output: Text | list[InputText]
    id: Text | None = None
    status: Text | None = None
    name: Text | None = ignored("its call has it")
    namespace: Text | None = ignored(ONE_LIST)
    caller: dict[str, Any] | None = ignored(MODEL_CALLS)


class ReasoningText(OpenBody):
    """A part of reasoning."""

    type: Literal["reasoning_text", "summary_text"]
    text: Text


class ReasoningItem(Remembered):
    """Reasoning of an earlier turn; where it has a content, its summary is not read."""

    type: Literal["reasoning"]
    id: Text | None = None
    summary: list[ReasoningText] = Field(default=[])
    content: list[ReasoningText] = Field(default=[])
    status: Text | None = None
    encrypted_content: Text | None = ignored("it cannot be read")


class ItemReference(OpenBody):
    """An item of a stored reply, or of its input."""

    type: Literal["item_reference"] = "item_reference"
    id: Text


def _kind(item: Any) -> str:
    """Returns an item's type. Messages and references may be written without; of these, messages have a role."""
    if not isinstance(item, dict):
        return str(getattr(item, "type", "message"))
    return str(item.get("type") or ("item_reference" if "id" in item and "role" not in item else "message"))


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_kind),
]


def chat_messages(items: Iterable[Item]) -> list[Json]:
    """Returns the messages of a chat: reasoning, text and calls that follow one another are one turn of the model."""
    found: list[Json] = []
    for item in items:
        match item:
            case ResultItem():
                result: Json = {"role": "tool", "content": text_of(item.output)}
                found.append(result if item.call_id is None else {**result, "tool_call_id": item.call_id})
            case ReasoningItem():
                turn = _turn(found, new=("content", "tool_calls"))
                reasoning = "".join(part.text for part in item.content or item.summary)
                turn["reasoning_content"] = turn.get("reasoning_content", "") + reasoning
            case CallItem():
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                _turn(found).setdefault("tool_calls", []).append(call)
            case MessageItem(role="assistant"):
                turn = _turn(found, new=() if found and "tool_calls" in found[-1] else ("content",))
                turn["content"] = turn.get("content", "") + text_of(item.content)
            case MessageItem():
                found.append({"role": item.role, "content": text_of(item.content)})
            case ItemReference():
                raise AssertionError("references are resolved first")
    return found


def listed(item: Json) -> Json:
    """Returns an item of the input as OpenAI lists it: with an id, its type, and its content in parts."""
    kind = item.get("type", "message")
    shown = {"id": f"{PREFIXES[kind]}_{uuid.uuid4().hex}", "type": kind, "status": "completed", **item}
    if isinstance(shown.get("content"), str):
        part = {"type": "output_text", "annotations": []} if item["role"] == "assistant" else {"type": "input_text"}
        shown["content"] = [{**part, "text": shown["content"]}]
    return shown


def text_of(content: str | Sequence[InputText]) -> str:
    """Returns a text that may come in parts."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _turn(found: list[Json], new: Sequence[str] = ()) -> Json:
    """Returns the model's turn that an item belongs to; another one where the last has a field of `new`."""
    if not found or found[-1]["role"] != "assistant" or any(field in found[-1] for field in new):
        found.append({"role": "assistant"})
    return found[-1]
