"""Requests of Anthropic's Messages API, as chat requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from arcforge_core.errors import ConfigError
from arcforge_serving.server.openai.chat_request import ChatRequest
from arcforge_serving.server.openai.messages import Effort, FunctionName
from arcforge_serving.server.openai.translate import chat_request, without_none
from arcforge_serving.server.shared.body import MOST_STOPS, Body, OpenBody, StopString, Text
from arcforge_serving.server.shared.common import CACHED, MOST_MESSAGES, ONE_TIER, Seed
from arcforge_serving.server.shared.ignored import Refused, ignored
from arcforge_serving.server.shared.memory import Remembered
from arcforge_serving.server.shared.usage import Json

NO_ACCOUNTS = "there are no accounts"


class Block(OpenBody):
    """A part of a message, or a tool."""

    cache_control: dict[str, Any] | None = ignored(CACHED)


class TextBlock(Block):
    """A text."""

    type: Literal["text"]
    text: Text
    citations: list[Any] | None = ignored("prompts do not show them")


class ThinkingBlock(Block):
    """Reasoning of an earlier turn; signatures are not checked."""

    type: Literal["thinking"]
    thinking: Text
    signature: Text = ""


class RedactedThinking(Block):
    """Reasoning of another server's model, encrypted; it is left out."""

    type: Literal["redacted_thinking"]
    data: Text | None = ignored("it cannot be read")


class ToolUse(Block):
    """A call of an earlier turn."""

    type: Literal["tool_use"]
    id: Text
    name: Text
    input: dict[str, Any]
    caller: dict[str, Any] | None = ignored("it is always the model")
    toolset_name: Text | None = ignored("tools have one list")


class ToolResult(Block):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: Text
    content: Text | list[TextBlock] = ""
    is_error: bool | None = ignored("the content describes the error")
    toolset_name: Text | None = ignored("tools have one list")


class SystemMessage(Remembered):
    """Instructions between turns."""

    role: Literal["system"]
    content: Text | list[TextBlock] = ""
    clear_at: Literal["next_user_message", "never"] = Field(
        default="never", description="next_user_message leaves it out once a later message is the user's"
    )
    output_config: Annotated[Any, Refused("fields of a request hold for all of it")] = None


class UserMessage(Remembered):
    """The user's text, and results of tools."""

    role: Literal["user"]
    content: Text | list[Annotated[TextBlock | ToolResult, Field(discriminator="type")]]


class AssistantMessage(Remembered):
    """The model's earlier output."""

    role: Literal["assistant"]
    content: Text | list[Annotated[TextBlock | ThinkingBlock | RedactedThinking | ToolUse, Field(discriminator="type")]]


class CustomTool(Block):
    """A tool that the client runs."""

    type: Literal["custom"] = "custom"
    name: FunctionName
    description: Text | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    allowed_callers: list[Text] | None = ignored("tools are called by the model alone")
    defer_loading: bool | None = ignored("prompts show all tools")
    eager_input_streaming: bool | None = ignored("arguments are streamed as they are generated")
    input_examples: list[dict[str, Any]] | None = ignored("prompts show the schema alone")


class ToolChoice(Body):
    """Which tools must or may be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = None
    disable_parallel_tool_use: bool = False


class ThinkingSwitch(Body):
    """Whether the model reasons first; it does unless disabled."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = ignored("the model ends its reasoning itself")
    display: Text | None = ignored("the reasoning itself is shown")
    block_binding: dict[str, Any] | None = ignored("signatures are not checked")


class JsonFormat(Body):
    """A JSON schema that the text must follow."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """Constraints of the text."""

    format: JsonFormat | None = None
    effort: Effort | None = Field(default=None, description="reasoning_effort of chats")
    task_budget: dict[str, Any] | None = ignored("prompts show no budgets")


class Metadata(Body):
    """Whose request it is."""

    user_id: Text = ""


class Thread(Body):
    """State of a conversation that a server is to hold; the whole conversation is given nevertheless."""

    type: Literal["create"]


class Prompt(Body):
    """The fields that become a prompt."""

    model: Text
    messages: Annotated[
        list[Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]],
        Field(min_length=1, max_length=MOST_MESSAGES),
    ]
    system: Text | list[TextBlock] | None = None
    tools: list[CustomTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingSwitch | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = Field(default=None, description="an older name of output_config.format")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="as of chats")
    cache_control: dict[str, Any] | None = ignored(CACHED)
    context_management: dict[str, Any] | None = ignored("the context holds what is sent")
    speed: Text | None = ignored(ONE_TIER)
    user_profile_id: Text | None = ignored(NO_ACCOUNTS)
    workspace_id: Text | None = ignored(NO_ACCOUNTS)
    mcp_servers: Annotated[Any, Refused("tools are called by the client")] = None

    def chat(self, **others: Any) -> ChatRequest:
        """Returns the chat request.

        Args:
            others: fields of it.

        Raises:
            ConfigError, RequestValidationError: there is none.
        """
        if self.messages[-1].role == "assistant":
            raise ConfigError(
                "messages", "assistant", "the last one must be the user's: prefilled answers are not supported"
            )
        choice = self.tool_choice
        switch = None if self.thinking is None else self.thinking.type
        fields = without_none(
            model=self.model,
            messages=self.chat_messages(),
            tools=None if self.tools is None else [chat_tool(tool) for tool in self.tools],
            tool_choice=None if choice is None else chat_choice(choice),
            parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
            thinking=None if switch is None else {"type": "disabled" if switch == "disabled" else "enabled"},
            chat_template_kwargs=self.chat_template_kwargs,
            reasoning_effort=None if self.output_config is None else self.output_config.effort,
        )
        form = self._format()
        if form is not None:
            schema = {"name": "output", "schema": form.schema_}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return chat_request({**fields, **others})

    def _format(self) -> JsonFormat | None:
        newer = None if self.output_config is None else self.output_config.format
        if newer is not None and self.output_format is not None:
            raise ConfigError("output_format", "given", "output_config.format is given too; one can be followed")
        return newer or self.output_format

    def chat_messages(self) -> list[Json]:
        """Returns the messages of a chat; results of tools are messages of their own."""
        found: list[Json] = []
        if self.system:
            found.append({"role": "system", "content": text_of(self.system)})
        last = max((place for place, message in enumerate(self.messages) if message.role == "user"), default=-1)
        for place, message in enumerate(self.messages):
            if isinstance(message, AssistantMessage):
                found.append(assistant_message(message))
            elif isinstance(message, SystemMessage):
                if message.clear_at == "never" or place > last:
                    found.append({"role": "system", "content": text_of(message.content)})
            else:
                found += user_messages(message)
        return found


class MessagesRequest(Prompt):
    """The body. Fields that Anthropic does not have are named as in `/v1/chat/completions`."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Annotated[list[StopString], Field(max_length=MOST_STOPS)] | None = None
    stream: bool = False
    temperature: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=-1)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    metadata: Metadata | None = None
    service_tier: Text | None = ignored(ONE_TIER)
    inference_geo: Text | None = ignored("there is one place")
    diagnostics: dict[str, Any] | None = ignored("cached tokens are in the usage")
    thread: Thread | None = ignored("no state is held")
    billing_policy: dict[str, Any] | None = ignored(NO_ACCOUNTS)
    fallbacks: list[Any] | Text | None = ignored("there is one model")
    fallback_credit_token: dict[str, Any] | Text | None = ignored("there is one model")
    container: Annotated[Any, Refused("this server runs no code")] = None
    compaction: Annotated[Any, Refused("conversations are compacted by the client")] = None
    seed: Seed | None = None
    ignore_eos: bool | None = None
    priority: int | None = Field(default=None, ge=-100, le=100)
    return_token_ids: bool = Field(default=False, description="token ids of prompt and output, and weight versions")

    def as_chat(self) -> ChatRequest:
        """Returns the chat request that this one amounts to.

        Raises:
            ConfigError, RequestValidationError: there is none.
        """
        return self.chat(
            **without_none(
                max_tokens=self.max_tokens, stop=self.stop_sequences, stream=self.stream, temperature=self.temperature,
                top_k=self.top_k, top_p=self.top_p, user=None if self.metadata is None else self.metadata.user_id,
                seed=self.seed, ignore_eos=self.ignore_eos, priority=self.priority,
                return_token_ids=self.return_token_ids,
            )
        )  # fmt: skip


class CountRequest(Prompt):
    """The body of ``count_tokens``."""


def text_of(content: str | Sequence[TextBlock]) -> str:
    """Returns a text that may come in blocks."""
    return content if isinstance(content, str) else "".join(block.text for block in content)


def chat_tool(tool: CustomTool) -> Json:
    """Returns a chat's tool."""
    strict = {} if tool.strict is None else {"strict": tool.strict}
    described = without_none(name=tool.name, description=tool.description, parameters=tool.input_schema)
    return {"type": "function", "function": described | strict}


def chat_choice(choice: ToolChoice) -> str | Json:
    """Returns a chat's choice of tools.

    Raises:
        ConfigError: a tool is not named.
    """
    if choice.type != "tool":
        return {"auto": "auto", "any": "required", "none": "none"}[choice.type]
    if choice.name is None:
        raise ConfigError("tool_choice", choice.type, "needs the name of the tool")
    return {"type": "function", "function": {"name": choice.name}}


def assistant_message(message: AssistantMessage) -> Json:
    """Returns a chat's message: reasoning, text and calls, each joined."""
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}
    found: Json = {"role": "assistant", "content": ""}
    for block in message.content:
        match block:
            case TextBlock():
                found["content"] += block.text
            case ThinkingBlock():
                found["reasoning_content"] = found.get("reasoning_content", "") + block.thinking
            case ToolUse():
                function = {"name": block.name, "arguments": block.input}
                found.setdefault("tool_calls", []).append({"id": block.id, "type": "function", "function": function})
    return found


def user_messages(message: UserMessage) -> list[Json]:
    """Returns a chat's messages; texts that follow one another are one."""
    if isinstance(message.content, str):
        return [{"role": "user", "content": message.content}]
    found: list[Json] = []
    for block in message.content:
        if isinstance(block, ToolResult):
            found.append({"role": "tool", "content": text_of(block.content), "tool_call_id": block.tool_use_id})
        elif found and found[-1]["role"] == "user":
            found[-1]["content"] += block.text
        else:
            found.append({"role": "user", "content": block.text})
    return found
