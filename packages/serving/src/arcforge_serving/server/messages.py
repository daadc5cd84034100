"""The part of a chat request that becomes a prompt: messages, tools, and how to render them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from arcforge_core.chat.openai import messages_from_openai, options_from_openai, tools_from_openai
from arcforge_core.contracts.chat import ChatTemplate, Tool
from arcforge_core.errors import ConfigError
from arcforge_serving.server.common import Body, Text
from arcforge_serving.server.state import ServerState


class Part(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: Text


class Function(Body):
    """What is called."""

    name: Text
    arguments: Text | dict[str, Any] = ""


class Call(Body):
    """A call in an assistant's message."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: Function
    index: int | None = None


class ChatMessage(Body):
    """A message. Fields of OpenAI's replies that are empty may be sent back as they are."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[Part] | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    tool_calls: list[Call] = Field(default=[])
    tool_call_id: Text | None = None
    name: Text | None = Field(default=None, description="taken and ignored: templates do not show it")

    @model_validator(mode="before")
    @classmethod
    def _without_empty_fields(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if key in cls.model_fields or value not in (None, [], {})}


FunctionName = Annotated[Text, Field(min_length=1, max_length=256, pattern=r"^[^\s<>{}\"]+$")]


class FunctionDefinition(Body):
    """A function that may be called."""

    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Body):
    """A tool."""

    type: Literal["function"]
    function: FunctionDefinition
    _given: dict[str, Any] = PrivateAttr()

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(given)
        made._given = given
        return made

    @property
    def given(self) -> dict[str, Any]:
        """What the client wrote, key order included: templates show it as it is."""
        return self._given


class Thinking(Body):
    """Z.ai's switches."""

    type: Literal["enabled", "disabled"] = "enabled"
    clear_thinking: bool = True


class Conversation(Body):
    """Messages to render."""

    messages: list[ChatMessage] = Field(default=[])
    tools: list[ToolDefinition] = Field(default=[])
    chat_template_kwargs: dict[str, Any] = Field(default={}, description="enable_thinking, clear_thinking")
    thinking: Thinking | None = None

    def known_tools(self) -> list[Tool]:
        """Returns the tools."""
        return tools_from_openai([tool.given for tool in self.tools])

    def prompt_ids(self, server: ServerState, tools: list[Tool], *, generation_prompt: bool = True) -> list[int]:
        """Returns the token ids of the conversation.

        Raises:
            ConfigError: the model has no chat template, or it has no words for this.
        """
        if not self.messages:
            raise ConfigError("messages", [], "must hold at least one message")
        options = options_from_openai(_given(self))
        messages = messages_from_openai([_given(message) for message in self.messages])
        template = template_of(server)
        return list(template.render(messages, tools, options, generation_prompt=generation_prompt).ids)


def template_of(server: ServerState) -> ChatTemplate:
    """Returns the model's chat template.

    Raises:
        ConfigError: it has none.
    """
    if server.template is None:
        accepted = f"{server.name} has no chat template, only /v1/completions works: {server.no_template}"
        raise ConfigError("messages", server.name, accepted)
    return server.template


def _given(part: BaseModel) -> dict[str, Any]:
    """Returns what a client wrote."""
    return part.model_dump(exclude_unset=True)
