"""Conversations with tools: the solver calls tools, the environment returns results, up to a limit of calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Task
from arcforge_core.episodes.base import EnvironmentBase
from arcforge_core.episodes.rewards import metric

Use = Callable[[ToolCall], Awaitable[str]]
"""Runs a call of an offered tool and returns its result; that of a failed call begins with ``Error``."""
CALLS = "calls"
"""Finish reason of an episode whose solver exceeded the limit of calls."""


class ToolEnvironment(EnvironmentBase):
    """An environment whose solver works with tools."""

    @metric(timeout=None)
    def calls(self, task: Task, episode: Episode) -> int:
        """Counts the calls of tools, failed ones too."""
        return sum(len(message.tool_calls) for message in episode.messages)


async def converse(
    agents: Agents,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    use: Use,
    *,
    max_calls: int,
    longest_result: int = 10_000,
) -> Episode:
    """Lets the solver use tools until it replies without a call.

    A call of an unknown tool, or without a required parameter, gets an error as its result. A truncated turn ends the
    conversation, as does one with more calls than remain. The engine does not wait for a tool that is awaited.

    Args:
        agents: agents with the solver.
        messages: initial messages of the conversation.
        tools: tools that may be called.
        use: runs a call.
        max_calls: limit of calls in the whole conversation.
        longest_result: maximum characters of a result; longer ones are cut, with a note.
    """
    conversation = [*messages]
    offered = {tool.name: tool for tool in tools}
    left = max_calls
    while True:
        reply = await agents.solver.reply(conversation, tools)
        conversation.append(reply.message)
        if not reply.calls or reply.finish_reason != "stop":
            return Episode(tuple(conversation), reply, reply.finish_reason)
        if len(reply.calls) > left:
            return Episode(tuple(conversation), reply, CALLS)
        left -= len(reply.calls)
        for call in reply.calls:
            flaw = _flaw(call, offered)
            result = flaw or await _used(agents, use, call)
            if len(result) > longest_result:
                result = f"{result[:longest_result]}\n[{len(result) - longest_result:,} more characters]"
            conversation.append(Message("tool", result, tool_call_id=call.id))


def ends_of(text: str, most: int) -> str:
    """Returns a text, or the beginning and the end of a longer one, with the number of characters left out."""
    half = most // 2
    if len(text) <= 2 * half:
        return text
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"


async def _used(agents: Agents, use: Use, call: ToolCall) -> str:
    with agents.away():
        return await use(call)


def _flaw(call: ToolCall, offered: dict[str, Tool]) -> str:
    """Returns the error of a call that must not be run, or an empty text."""
    if call.name not in offered:
        return f"Error: there is no tool {call.name[:100]!r}, only {', '.join(offered)}"
    schema = offered[call.name].parameters
    known, needed = schema.get("properties") or {}, schema.get("required") or ()
    missing, strange = [n for n in needed if n not in call.arguments], [n for n in call.arguments if n not in known]
    if missing or strange:
        wrong = f"misses {', '.join(missing)}" if missing else f"does not take {', '.join(map(str, strange))[:100]}"
        return f"Error: {call.name} {wrong}"
    return ""
