"""Requests of OpenAI's Responses API, as chat requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter

from arcforge_core.errors import ConfigError
from arcforge_serving.server.openai.chat_request import ChatRequest
from arcforge_serving.server.openai.messages import Effort, FunctionName, Thinking
from arcforge_serving.server.openai.translate import chat_request, without_none
from arcforge_serving.server.responses.items import Item, ItemReference, chat_messages, listed
from arcforge_serving.server.shared.body import Body, Metadata, OpenBody, Text
from arcforge_serving.server.shared.common import CACHED, MOST_MESSAGES, ONE_TIER, UNMODERATED, Seed
from arcforge_serving.server.shared.ignored import PRINTABLE, Ignored, Refused, WalkedOnce, ignored
from arcforge_serving.server.shared.usage import Json

ITEMS = TypeAdapter(list[Item])


class FunctionTool(OpenBody):
    """A function that the client runs."""

    type: Literal["function"]
    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    asynchronous: bool | None = ignored("results come with a later request", alias="async")
    allowed_callers: list[Text] | None = ignored("tools are called by the model alone")
    defer_loading: bool | None = ignored("prompts show all tools")
    output_schema: dict[str, Any] | None = ignored("prompts show the parameters alone")


class OtherTool(OpenBody, WalkedOnce):
    """A tool that OpenAI's servers run, or a group of tools; the model does not see it."""

    type: Text

    @cached_property
    def without_effect(self) -> tuple[Ignored, ...]:
        """Its type."""
        return (Ignored(self.type if PRINTABLE.fullmatch(self.type) else "?", "*"),)


def kind_of_tool(given: Any) -> str:
    """Returns which of the two classes reads a tool."""
    kind = given.get("type") if isinstance(given, dict) else getattr(given, "type", None)
    return "other" if isinstance(kind, str) and kind != "function" else "function"


AnyTool = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[OtherTool, Tag("other")], Discriminator(kind_of_tool)
]


class NamedFunction(OpenBody):
    """The function that must be called."""

    type: Literal["function"]
    name: Text


class AllowedFunctions(Body):
    """The functions that may be called, or must with ``required``."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1)]


class TextFormat(Body):
    """Constraints of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: Text | None = None
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    """Options of the text."""

    format: TextFormat | None = None
    verbosity: Text | None = ignored("the model has no levels of it")


class Reasoning(Body):
    """Whether the model reasons: not with the effort `none` or `minimal`; and which earlier reasoning it is shown."""

    effort: Effort | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    summary: Text | None = ignored("the reasoning itself is shown")
    generate_summary: Text | None = ignored("the reasoning itself is shown")
    mode: Text | None = ignored("there is one mode")


class EventOptions(Body):
    """Options of the stream."""

    include_obfuscation: bool | None = ignored("events are not padded")


class Prompt(Body):
    """The fields that become a prompt. Those that OpenAI does not have are named as in `/v1/chat/completions`."""

    model: Text | None = None
    input: Text | Annotated[list[Item], Field(min_length=1, max_length=MOST_MESSAGES)]
    instructions: Text | None = None
    previous_response_id: Text | None = Field(default=None, description="continue from a stored reply")
    tools: list[AnyTool] | None = Field(default=None, description="those that are no functions have no effect")
    tool_choice: Literal["auto", "none", "required"] | NamedFunction | AllowedFunctions | None = None
    parallel_tool_calls: bool = True
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = Field(default=None, description="nothing is ever left out")
    conversation: Annotated[Any, Refused("use previous_response_id")] = None
    thinking: Thinking | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="as of chats")

    def resolve(self, find: Callable[[str], Json | None]) -> None:
        """Puts the items in the place of their references.

        Args:
            find: an item by its id.

        Raises:
            ConfigError: an item is not stored.
        """
        if isinstance(self.input, str) or not any(isinstance(item, ItemReference) for item in self.input):
            return
        found = [
            find(item.id) if isinstance(item, ItemReference) else item.model_dump(by_alias=True, exclude_unset=True)
            for item in self.input
        ]
        if None in found:
            id_ = self.input[found.index(None)].id or ""
            raise ConfigError("input", id_, f"there is no stored item {id_[:100]!r}; the oldest are forgotten first")
        self.input = ITEMS.validate_python(found)

    def new_messages(self) -> list[Json]:
        """Returns the messages of a chat that come with this request, without the instructions."""
        return [{"role": "user", "content": self.input}] if isinstance(self.input, str) else chat_messages(self.input)

    def new_items(self) -> list[Json]:
        """Returns the input as items, each with an id and its content in parts."""
        if isinstance(self.input, str):
            return [listed({"role": "user", "content": self.input})]
        return [listed(item.model_dump(by_alias=True, exclude_unset=True)) for item in self.input]

    def chat(self, messages: list[Json], **others: Any) -> ChatRequest:
        """Returns the chat request.

        Args:
            messages: those before and `new_messages`.
            others: fields of it.

        Raises:
            ConfigError, RequestValidationError: there is none.
        """
        if messages[-1]["role"] == "assistant":
            accepted = "the last item must be a user's or a function's: prefilled answers are not supported"
            raise ConfigError("input", "assistant", accepted)
        instructions = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        thinking = None if self.thinking is None else self.thinking.model_dump(exclude_unset=True)
        reasoning = self.reasoning or Reasoning()
        if reasoning.effort is not None and thinking is not None:
            raise ConfigError("thinking", "given", "reasoning.effort is given too; one can be followed")
        if reasoning.context in ("current_turn", "all_turns"):
            thinking = {"clear_thinking": reasoning.context == "current_turn", **(thinking or {})}
        return chat_request(
            without_none(
                model=self.model, messages=[*instructions, *messages],
                tools=self._functions(),
                tool_choice=None if self.tool_choice is None else chat_choice(self.tool_choice),
                parallel_tool_calls=self.parallel_tool_calls, response_format=self._format(), thinking=thinking,
                reasoning_effort=reasoning.effort, chat_template_kwargs=self.chat_template_kwargs, **others,
            )
        )  # fmt: skip

    def _functions(self) -> list[Json] | None:
        if self.tools is None:
            return None
        found = [chat_tool(tool) for tool in self.tools if isinstance(tool, FunctionTool)]
        if self.tools and not found:
            kinds = sorted({tool.type for tool in self.tools})
            raise ConfigError("tools", kinds, "must have one of type function: this server runs no tools itself")
        return found

    def _format(self) -> Json | None:
        form = None if self.text is None else self.text.format
        if form is None:
            return None
        if form.type != "json_schema":
            return {"type": form.type}
        if form.schema_ is None:
            raise ConfigError("text", form.type, "format needs a schema")
        return {"type": form.type, "json_schema": {"name": form.name or "output", "schema": form.schema_}}


class ResponsesRequest(Prompt):
    """The body."""

    store: bool = Field(default=True, description="store the reply")
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    stream: bool = False
    stream_options: EventOptions | None = None
    user: Text | None = None
    metadata: Metadata | None = Field(default=None, description="shown in the reply")
    background: Literal[False] | None = None
    include: list[Text] | None = ignored("replies hold all that there is")
    client_metadata: dict[str, Any] | None = ignored("nothing is kept of clients")
    max_tool_calls: int | None = ignored("it limits tools that the server runs, and there are none")
    prompt_cache_key: Text | None = ignored(CACHED)
    prompt_cache_options: dict[str, Any] | None = ignored(CACHED)
    prompt_cache_retention: Text | None = ignored(CACHED)
    safety_identifier: Text | None = ignored("users are not reported")
    service_tier: Text | None = ignored(ONE_TIER)
    access_programs: dict[str, Any] | None = ignored("there are none")
    background_options: dict[str, Any] | None = ignored("nothing runs in the background")
    image: dict[str, Any] | None = ignored("there are no images")
    moderation: Annotated[Any, Refused(UNMODERATED)] = None
    prompt: Annotated[Any, Refused("no templates of prompts are stored; use instructions and input")] = None
    context_management: Annotated[Any, Refused("conversations are compacted by the client")] = None
    top_logprobs: Annotated[Any, Refused("log-probs are a field of /v1/chat/completions")] = None
    seed: Seed | None = None
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    ignore_eos: bool | None = None
    priority: int | None = Field(default=None, ge=-100, le=100)
    return_token_ids: bool = Field(default=False, description="token ids of prompt and output, and weight versions")

    def as_chat(self, messages: list[Json]) -> ChatRequest:
        """Returns the chat request that this one amounts to; see `chat`."""
        return self.chat(
            messages, max_tokens=self.max_output_tokens, temperature=self.temperature, top_p=self.top_p,
            top_k=self.top_k, min_p=self.min_p, repetition_penalty=self.repetition_penalty, seed=self.seed,
            ignore_eos=self.ignore_eos, priority=self.priority, user=self.user, stream=self.stream,
            return_token_ids=self.return_token_ids,
        )  # fmt: skip


class CountRequest(Prompt):
    """The body of ``input_tokens``."""

    personality: Text | None = ignored("the model has one")


def chat_choice(choice: str | NamedFunction | AllowedFunctions) -> str | Json:
    """Returns a chat's choice of tools."""
    match choice:
        case NamedFunction():
            return {"type": "function", "function": {"name": choice.name}}
        case AllowedFunctions():
            allowed = {"mode": choice.mode, "tools": [chat_choice(tool) for tool in choice.tools]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
        case _:
            return choice


def chat_tool(tool: FunctionTool) -> Json:
    """Returns a chat's tool."""
    described = without_none(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return {"type": "function", "function": described}


def said(output: list[Json]) -> list[Json]:
    """Returns the output of a reply as messages of a chat."""
    return chat_messages(ITEMS.validate_python(output))
