"""An agent that has tools of its own, which its environment does not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.environment import Reply
from arcforge_rl.agents.chat import ChatAgent, LimitReached
from arcforge_rl.agents.mcp import McpTools


@dataclass
class ToolTurn:
    """One reply as the environment saw it, and the messages that led to it.

    Attributes:
        said: the environment's copy.
        own: messages in its place; the last one is the whole reply.
        held: results of the reply's own calls, by their places among all of its calls.
    """

    said: Message
    own: list[Message]
    held: dict[int, Message] = field(default_factory=dict)


class ToolingAgent:
    """Calls its own tools until the policy calls one of the environment's, or none.

    Of a reply that calls both kinds, the environment sees its own calls; the policy then sees all results in order.

    Args:
        inner: asks the policy.
        tools: its own.
        max_calls: of its own tools, in all.
    """

    def __init__(self, inner: ChatAgent, tools: McpTools, max_calls: int) -> None:
        self.inner, self.tools, self.left = inner, tools, max_calls
        self._turns: list[ToolTurn] = []

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Asks for the next turn; see `ChatAgent.reply`.

        Raises:
            LimitReached: also beyond `max_calls`.
            EpisodeFailure: also of the tools' server.
        """
        conversation, own = self.whole(messages), list[Message]()
        while True:
            reply = await self.inner.reply([*conversation, *own], [*tools, *self.tools.tools], options)
            own.append(reply.message)
            held: dict[int, Message] = {}
            for place, call in enumerate(reply.calls):
                if call.name in self.tools:
                    if not self.left:
                        raise LimitReached("the rollout has reached harness.max_tool_calls")
                    self.left -= 1
                    held[place] = Message("tool", await self.tools.use(call), tool_call_id=call.id)
            if held and len(held) == len(reply.calls):
                own += held.values()
                continue
            seen = replace(reply, calls=tuple(call for n, call in enumerate(reply.calls) if n not in held))
            self._turns.append(ToolTurn(seen.message, own, held))
            return seen

    def whole(self, messages: Sequence[Message]) -> list[Message]:
        """Returns an environment's conversation with this agent's calls and their results."""
        found, turns, held, place = list[Message](), [*self._turns], dict[int, Message](), 0
        for message in messages:
            if held and message.role != "tool":
                found += held.values()  # the environment answered none of its calls
                held = {}
            if turns and message == turns[0].said:
                turn, place = turns.pop(0), 0
                found += turn.own
                held = dict(turn.held)
                continue
            while place in held:
                found.append(held.pop(place))
                place += 1
            found.append(message)
            place += 1
        return [*found, *held.values()]
