"""Conversations with tools: the solver calls, the environment answers, so many turns at most."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode

Use = Callable[[ToolCall], Awaitable[str]]
"""Runs a call of a tool that was offered and returns its result; one that failed begins with ``Error``."""
CALLS = "calls"
"""Why an episode ends whose solver has called too often."""


async def converse(
    agents: Agents,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    use: Use,
    *,
    max_calls: int,
    longest_result: int = 10_000,
) -> Episode:
    """Lets the solver work with tools until it calls none.

    A call of something else, or without a parameter that is required, gets an error to read. A turn that was cut off
    ends the conversation, and so does one that calls more often than is left.

    Args:
        agents: the solver is asked.
        messages: that the conversation begins with.
        tools: what may be called.
        use: runs a call.
        max_calls: in the whole conversation.
        longest_result: characters of a result; more are cut away, and the result says so.
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
            result = flaw or await use(call)
            if len(result) > longest_result:
                result = f"{result[:longest_result]}\n[{len(result) - longest_result:,} more characters]"
            conversation.append(Message("tool", result, tool_call_id=call.id))


def _flaw(call: ToolCall, offered: dict[str, Tool]) -> str:
    """Returns what is wrong with a call before it is run, or nothing."""
    if call.name not in offered:
        return f"Error: there is no tool {call.name[:100]!r}, only {', '.join(offered)}"
    schema = offered[call.name].parameters
    known, needed = schema.get("properties") or {}, schema.get("required") or ()
    missing, strange = [n for n in needed if n not in call.arguments], [n for n in call.arguments if n not in known]
    if missing or strange:
        wrong = f"misses {', '.join(missing)}" if missing else f"does not take {', '.join(map(str, strange))[:100]}"
        return f"Error: {call.name} {wrong}"
    return ""
