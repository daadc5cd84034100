"""The part of a chat request that becomes a prompt: messages, tools, and how to render them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError, from_json

from arcforge_core.chat.openai import message_from_openai, options_from_openai, tools_from_openai
from arcforge_core.contracts.chat import ChatTemplate, Message, Tool
from arcforge_core.errors import ConfigError
from arcforge_serving.server.shared.body import Body, OpenBody, Text
from arcforge_serving.server.shared.common import CACHED, MOST_MESSAGES, check_length, check_size
from arcforge_serving.server.shared.ignored import Refused, ignored
from arcforge_serving.server.shared.memory import Remembered
from arcforge_serving.server.shared.state import ServerState

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
TEXT_ONLY = "this model reads and writes text only"
MEDIA = ("image_url", "input_audio", "file", "input_image", "input_file")
"""Types of parts that it cannot read."""
UNREADABLE = "arguments"


class Part(OpenBody):
    """A part of a message's content; refusals of other servers are texts."""

    type: Literal["text"]
    text: Text
    prompt_cache_breakpoint: dict[str, Any] | None = ignored(CACHED)
    cache_control: dict[str, Any] | None = ignored(CACHED)

    @model_validator(mode="before")
    @classmethod
    def _refusal_as_text(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("type") == "refusal":
            return {"type": "text", "text": given.get("refusal")}
        if isinstance(given, dict) and given.get("type") in MEDIA:
            raise PydanticCustomError("refused", "{why}, no {kind}", {"why": TEXT_ONLY, "kind": given["type"]})
        return given


def readable(text: str) -> dict[str, Any]:
    """Returns the parameters at the beginning of a JSON object that was cut off; {} if there are none."""
    with suppress(ValueError):
        json.JSONDecoder().raw_decode(text.lstrip())
        return {}  # whole, with other text after it
    with suppress(ValueError):
        found = from_json(text, allow_partial="trailing-strings")
        return found if isinstance(found, dict) else {}
    return {}


class Function(OpenBody):
    """The called function. OpenAI accepts arguments in a history that are no JSON object: of one that was cut off, as
    by a stream that ended early, the parameters that can be read are kept; other text becomes the value of a parameter
    of the name `UNREADABLE`. The field is counted as one without effect."""

    name: Text
    arguments: Text | dict[str, Any] = ""

    @model_validator(mode="after")
    def _keep_unreadable(self) -> Self:
        if isinstance(self.arguments, str) and self.arguments:
            try:
                is_object = isinstance(json.loads(self.arguments), dict)
            except ValueError:
                is_object = False
            if not is_object:
                text, self.arguments = self.arguments, readable(self.arguments) or {UNREADABLE: self.arguments}
                assert self.model_extra is not None  # of an `OpenBody`
                self.model_extra["arguments_not_json"] = text
        return self


class Call(OpenBody):
    """A call in an assistant's message."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: Function
    index: int | None = None


class ChatMessage(Remembered):
    """A message. Unknown fields that are empty are not even counted."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[Part] | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    tool_calls: list[Call] = Field(default=[])
    tool_call_id: Text | None = None
    name: Text | None = ignored("templates do not render it")
    refusal: Text | None = ignored("templates do not render it")
    cache_control: dict[str, Any] | None = ignored(CACHED)
    audio: Annotated[Any, Refused(TEXT_ONLY)] = None
    function_call: Annotated[Any, Refused("calls are given as tool_calls")] = None

    @model_validator(mode="before")
    @classmethod
    def _without_empty_fields(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if key in KEPT_EMPTY or value not in (None, [], {}, "")}

    @cached_property
    def message(self) -> Message:
        """The message that templates render.

        Raises:
            ConfigError: its fields contradict each other; the error names them from here on.
        """
        return message_from_openai(self.model_dump(exclude_unset=True), "")

    @cached_property
    def rendered(self) -> int:
        """Bytes that every template renders of it, white space at their ends excepted; a model's may be shortened."""
        if self.content is None or self.role == "assistant":
            return 0
        texts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return sum(len(text.strip().encode()) for text in texts)

    @cached_property
    def written(self) -> int:
        """Characters of what a model wrote: content, reasoning and calls, which templates may shorten."""
        if self.role != "assistant":
            return 0
        parts = self.content if isinstance(self.content, list) else []
        texts = [self.content if isinstance(self.content, str) else "", self.reasoning_content, self.reasoning]
        calls = [call.function for call in self.tool_calls]
        arguments = [c.arguments if isinstance(c.arguments, str) else json.dumps(c.arguments) for c in calls]
        given = [*texts, *(part.text for part in parts), *arguments, *(call.name for call in calls)]
        return sum(len(text) for text in given if text)


KEPT_EMPTY = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")

FunctionName = Annotated[Text, Field(min_length=1, max_length=256, pattern=r"^[^\s<>{}\"]+$")]


class FunctionDefinition(OpenBody):
    """A function that may be called."""

    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(OpenBody):
    """A tool."""

    type: Literal["function"]
    function: FunctionDefinition
    _given: dict[str, Any] = PrivateAttr()

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(given)
        function = {key: value for key, value in given["function"].items() if key in FunctionDefinition.model_fields}
        made._given = {key: function if key == "function" else given[key] for key in given if key in cls.model_fields}
        return made

    @property
    def given(self) -> dict[str, Any]:
        """The definition as the client wrote it, key order included, for templates; without unknown fields."""
        return self._given


class Thinking(Body):
    """Z.ai's switches."""

    type: Literal["enabled", "disabled"] = "enabled"
    clear_thinking: bool = True


class ConversationFields(Body):
    """Messages to render."""

    messages: list[ChatMessage] = Field(default=[], max_length=MOST_MESSAGES)
    tools: list[ToolDefinition] = Field(default=[])
    chat_template_kwargs: dict[str, Any] = Field(default={}, description="enable_thinking, clear_thinking")
    thinking: Thinking | None = None
    reasoning_effort: Effort | None = Field(
        default=None, description="none and minimal turn the reasoning off; templates with levels receive it"
    )

    def known_tools(self) -> list[Tool]:
        return tools_from_openai([tool.given for tool in self.tools])

    def prompt_ids(self, server: ServerState, tools: list[Tool], *, generation_prompt: bool = True) -> list[int]:
        """Returns the token ids of the conversation.

        Raises:
            ConfigError: the model has no chat template, or cannot render this.
        """
        if not self.messages:
            raise ConfigError("messages", [], "must hold at least one message")
        described = (tool.definition.get("function", {}).get("description") or "" for tool in tools)
        texts = sum(len(text.encode()) for text in described) + sum(message.rendered for message in self.messages)
        check_length(texts, server)
        definitions = sum(len(json.dumps(tool.definition)) for tool in tools)
        check_size("messages", sum(message.written for message in self.messages), server)
        check_size("tools", definitions, server)
        options = options_from_openai(self.model_dump(exclude_unset=True, exclude={"messages", "tools"}))
        messages = _messages(self.messages)
        template = template_of(server)
        if generation_prompt:
            return server.turns.prompt(template, messages, tools, options)
        return list(template.render(messages, tools, options).ids)


def _messages(given: Sequence[ChatMessage]) -> list[Message]:
    found: list[Message] = []
    try:
        for message in given:
            found.append(message.message)
    except ConfigError as error:
        raise ConfigError(f"messages[{len(found)}]{error.field}", error.value, error.accepted) from error
    return found


def template_of(server: ServerState) -> ChatTemplate:
    """Returns the model's chat template.

    Raises:
        ConfigError: it has none.
    """
    if server.template is None:
        accepted = f"{server.name} has no chat template, only /v1/completions works: {server.no_template}"
        raise ConfigError("messages", server.name, accepted)
    return server.template
