"""The body of ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from arcforge_core.contracts.chat import Tool
from arcforge_core.errors import ConfigError
from arcforge_serving.server.openai.messages import TEXT_ONLY, ConversationFields
from arcforge_serving.server.openai.token_ids import TokenIdFields
from arcforge_serving.server.shared.body import Body, OpenBody, Text
from arcforge_serving.server.shared.common import MOST_TOP, GenerateRequest
from arcforge_serving.server.shared.ignored import Refused, ignored

USE_TOOLS = "is the older form of tools and tool_choice"


class NamedFunction(OpenBody):
    """A tool's name."""

    name: Text


class NamedTool(OpenBody):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    """Names of the tools that may be called, or must with ``required``; the prompt shows all tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class AllowedToolChoice(Body):
    """Some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class ChatRequest(ConversationFields, TokenIdFields, GenerateRequest):
    """The body."""

    max_tokens: int | None = Field(default=None, ge=1, description="default: as many as the context has room for")
    max_completion_tokens: int | None = Field(default=None, ge=1, description="the newer name of max_tokens")
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MOST_TOP)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | AllowedToolChoice = "auto"
    parallel_tool_calls: bool = True
    modalities: list[Literal["text"]] | None = None
    include_reasoning: bool = Field(default=True, description="false hides the reasoning, which is generated anyhow")
    echo: bool | None = ignored("turns are answered, not continued")
    verbosity: Text | None = ignored("the model has no levels of it")
    prediction: dict[str, Any] | None = ignored("drafts are the model's own")
    audio: Annotated[Any, Refused(TEXT_ONLY)] = None
    web_search_options: Annotated[Any, Refused("this server searches nothing")] = None
    functions: Annotated[Any, Refused(USE_TOOLS)] = None
    function_call: Annotated[Any, Refused(USE_TOOLS)] = None

    @property
    def is_forced(self) -> bool:
        """Whether a tool must be called."""
        return self.mode == "required"

    @property
    def mode(self) -> str:
        """``auto``, ``none`` or ``required``; a named tool is required."""
        choice = self.tool_choice
        if isinstance(choice, AllowedToolChoice):
            return choice.allowed_tools.mode
        return "required" if isinstance(choice, NamedTool) else choice

    def callable_tools(self) -> list[Tool]:
        """Returns the callable tools. The prompt shows all tools, with ``none`` none of them.

        Raises:
            ConfigError: `tool_choice` names an unknown tool, or there are no tools.
        """
        tools = self.known_tools()
        if self.is_forced and not tools:
            raise ConfigError("tool_choice", "given", "there are no tools")
        names = self.chosen
        unknown = next((name for name in names or () if name not in {tool.name for tool in tools}), None)
        if unknown is not None:
            raise ConfigError("tool_choice", unknown, f"there is no tool {unknown!r}")
        if names is not None:
            tools = [tool for tool in tools if tool.name in names]
        return [] if self.tool_choice == "none" else tools

    @property
    def chosen(self) -> list[str] | None:
        """Names of the tools that `tool_choice` limits calls to; None for no limit."""
        match self.tool_choice:
            case NamedTool(function=function):
                return [function.name]
            case AllowedToolChoice(allowed_tools=allowed):
                return [tool.function.name for tool in allowed.tools]
            case _:
                return None
