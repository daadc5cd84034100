"""Plays the turns of a conversation: parses the policy's messages, checks and runs its calls, enforces limits."""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_core.chat.parser import ENDED_BY_CALL, NOT_CLOSED, THINK, UNKNOWN_TOOL
from arcforge_core.contracts.chat import Message, Parsed, ToolCall
from arcforge_core.contracts.conversation import Conversation
from arcforge_core.contracts.environment import Agents, Reply
from arcforge_core.data.conversations.format import call_flaws
from arcforge_core.episodes.tools import Use

ANSWERED, TRUNCATED, TOO_MANY_CALLS, NOT_REACHED = "answered", "truncated", "too many calls", "not reached"
"""How a turn ends: with an answer, at the limit of tokens or of calls, or not reached after one of these."""
NO_ROOM = Reply(finish_reason="length")
"""The reply to a prompt that fills the model's positions."""


class Turns:
    """The turns of one conversation, and whether the policy followed the format.

    Attributes:
        messages: the conversation so far.
        reply: the policy's last reply.
        answers: outcome, text and expected answer of each question.
        flaws: syntax errors in the policy's messages.
        obeyed: whether each message follows the thinking mode.
        calls: number of the policy's calls.
        valid_calls: number of runnable calls: closed, of a known tool, with arguments that fit its schema.
    """

    def __init__(self, conversation: Conversation, max_calls: int) -> None:
        self.conversation, self.max_calls = conversation, max_calls
        self.messages: list[Message] = []
        self.reply = Reply()
        self.answers: list[dict[str, str]] = []
        self.flaws: list[str] = []
        self.obeyed: list[bool] = []
        self.calls = self.valid_calls = 0

    async def ask(self, given: Sequence[Message], agents: Agents, use: Use) -> tuple[str, str]:
        """Returns the outcome of a turn, and its answer."""
        self.messages += given
        rounds = 0
        while True:
            reply = await agents.solver.reply(self.messages, self.conversation.tools, self.conversation.options)
            self.reply = reply
            if (reply == NO_ROOM and reply.parsed is None) or reply.finish_reason in ("abort", "error"):
                return TRUNCATED, ""
            pending = self._take(reply)
            if reply.finish_reason != "stop":
                return TRUNCATED, reply.text
            if not pending:
                return ANSWERED, reply.text
            if rounds == self.max_calls:
                return TOO_MANY_CALLS, reply.text
            rounds += 1
            with agents.away():
                self.messages += [Message("tool", refused or await use(call)) for call, refused in pending]

    def _take(self, reply: Reply) -> list[tuple[ToolCall, str]]:
        """Adds the policy's message; returns its calls, each with its error, or an empty text if it is to be run."""
        parsed = reply.parsed or Parsed(reply.message)
        pending = judge_calls(parsed, self.conversation)
        self.messages.append(parsed.message)
        self.flaws += parsed.flaws
        self.obeyed.append(obeys(parsed, self.conversation))
        self.calls += max(len(pending), len(malformed(parsed)))
        self.valid_calls += sum(not refused for _, refused in pending)
        return pending


def malformed(parsed: Parsed) -> list[str]:
    """Returns the flaws in the syntax of calls."""
    return [f for f in parsed.flaws if f not in (NOT_CLOSED, ENDED_BY_CALL) and not f.startswith(UNKNOWN_TOOL)]


def judge_calls(parsed: Parsed, conversation: Conversation) -> list[tuple[ToolCall, str]]:
    """Returns the calls of a message, each with its error; the error of a valid call is empty.

    If one call of a message is malformed, none of its calls is run, because the arguments are unknown.
    """
    broken = malformed(parsed)
    found: list[tuple[ToolCall, str]] = []
    for call in parsed.message.tool_calls:
        flaw = broken[0] if broken else next(call_flaws(call, conversation), None)
        found.append((call, "" if flaw is None else f"Error: {flaw}"))
    return found


def obeys(parsed: Parsed, conversation: Conversation) -> bool:
    """Returns whether a message follows its thinking mode."""
    reasoning = bool((parsed.message.reasoning or "").strip())
    if conversation.options.enable_thinking:
        return reasoning and NOT_CLOSED not in parsed.flaws and ENDED_BY_CALL not in parsed.flaws
    return not reasoning and THINK not in parsed.message.content
