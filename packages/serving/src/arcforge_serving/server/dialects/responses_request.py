"""Requests of OpenAI's Responses API, as chat requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from arcforge_core.errors import ConfigError
from arcforge_serving.server.chat import ChatRequest
from arcforge_serving.server.common import LARGEST, Body, Text
from arcforge_serving.server.dialects.responses_items import Item, chat_messages
from arcforge_serving.server.dialects.translate import chat_request, without_none
from arcforge_serving.server.messages import FunctionName, Thinking
from arcforge_serving.server.reply import Json

UNTHINKING = ("none", "minimal")
"""Efforts at which the model does not reason; it has no levels beside them."""


class FunctionTool(Body):
    """A function that the client runs."""

    type: Literal["function"]
    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(Body):
    """The function that must be called."""

    type: Literal["function"]
    name: Text


class TextFormat(Body):
    """What the text must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: Text | None = None
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    """Options of the text."""

    format: TextFormat | None = None
    verbosity: Text | None = Field(default=None, description="ignored")


class Reasoning(Body):
    """Whether the model reasons: not with the effort `none` or `minimal`."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Text | None = Field(default=None, description="ignored: the reasoning itself is shown")


class EventOptions(Body):
    """Options of the stream."""

    include_obfuscation: bool = Field(default=False, description="ignored")


class ResponsesRequest(Body):
    """The body. Fields that OpenAI does not have are named as in `/v1/chat/completions`."""

    model: Text | None = None
    input: Text | Annotated[list[Item], Field(min_length=1)]
    instructions: Text | None = None
    previous_response_id: Text | None = Field(default=None, description="go on from a reply that is still kept")
    store: bool = Field(default=True, description="keep the reply, for a while")
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool = True
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    stream: bool = False
    stream_options: EventOptions | None = None
    user: Text | None = None
    metadata: dict[str, Any] | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = Field(
        default=None, description="ignored: reasoning is not encrypted"
    )
    prompt_cache_key: Text | None = Field(default=None, description="ignored")
    prompt_cache_retention: Text | None = Field(default=None, description="ignored")
    safety_identifier: Text | None = Field(default=None, description="ignored")
    service_tier: Text | None = Field(default=None, description="ignored")
    seed: int | None = Field(default=None, ge=0, lt=LARGEST)
    top_k: int | None = Field(default=None, ge=-1)
    ignore_eos: bool | None = None
    priority: int | None = Field(default=None, ge=-100, le=100)
    thinking: Thinking | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="as of chats")
    return_token_ids: bool = Field(default=False, description="token ids of prompt and output, and weight versions")

    def new_messages(self) -> list[Json]:
        """Returns the messages of a chat that come with this request, without the instructions."""
        return [{"role": "user", "content": self.input}] if isinstance(self.input, str) else chat_messages(self.input)

    def as_chat(self, messages: list[Json]) -> ChatRequest:
        """Returns the chat request that this one amounts to.

        Args:
            messages: those before and `new_messages`.

        Raises:
            ConfigError, RequestValidationError: there is none.
        """
        if messages[-1]["role"] == "assistant":
            accepted = "the last item must be a user's or a function's: no answer is begun for the model"
            raise ConfigError("input", "assistant", accepted)
        instructions = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        thinking = None if self.thinking is None else self.thinking.model_dump(exclude_unset=True)
        if self.reasoning is not None and self.reasoning.effort is not None:
            if thinking is not None:
                raise ConfigError("thinking", "given", "reasoning.effort is given too; one can be followed")
            thinking = {"type": "disabled" if self.reasoning.effort in UNTHINKING else "enabled"}
        choice = self.tool_choice
        if isinstance(choice, NamedFunction):
            named: Any = {"type": "function", "function": {"name": choice.name}}
        else:
            named = choice
        return chat_request(
            without_none(
                model=self.model, messages=[*instructions, *messages], max_tokens=self.max_output_tokens,
                temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, seed=self.seed,
                ignore_eos=self.ignore_eos, priority=self.priority, user=self.user, stream=self.stream,
                tools=None if self.tools is None else [chat_tool(tool) for tool in self.tools], tool_choice=named,
                parallel_tool_calls=self.parallel_tool_calls, response_format=self._format(), thinking=thinking,
                chat_template_kwargs=self.chat_template_kwargs, return_token_ids=self.return_token_ids,
            )
        )  # fmt: skip

    def _format(self) -> Json | None:
        form = None if self.text is None else self.text.format
        if form is None:
            return None
        if form.type != "json_schema":
            return {"type": form.type}
        if form.schema_ is None:
            raise ConfigError("text", form.type, "format needs a schema")
        return {"type": form.type, "json_schema": {"name": form.name or "output", "schema": form.schema_}}


def chat_tool(tool: FunctionTool) -> Json:
    """Returns a chat's tool."""
    described = without_none(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return {"type": "function", "function": described}


ITEMS = TypeAdapter(list[Item])


def said(output: list[Json]) -> list[Json]:
    """Returns the output of a reply as messages of a chat."""
    return chat_messages(ITEMS.validate_python(output))
