"""The policy as an environment's agent, asked by chat completions in a session."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from arcforge_core.chat.openai import message_to_openai, reply_from_openai, switches_of
from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.environment import EpisodeFailure, Reply
from arcforge_core.data.split import key_hash
from arcforge_core.errors import ArcforgeError
from arcforge_rl.agents.context import Context
from arcforge_rl.agents.gateway import Gateway, GatewaySession

LENGTH = "length"
NO_ROOM = Reply(finish_reason=LENGTH)
"""To a conversation that the model has no room for."""


class LimitReached(ArcforgeError):
    """The session answers no further turn: one of its limits is reached."""


@dataclass(frozen=True)
class ChatSetup:
    """How turns are sampled.

    Attributes:
        max_new_tokens: of a reply.
        temperature: 0 is greedy.
        sampled_logprobs: see `SamplingParams`.
        options: how conversations are rendered, unless the environment says otherwise.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    sampled_logprobs: bool = False
    options: ChatOptions = field(default_factory=lambda: ChatOptions(enable_thinking=False))

    def imposed(self, seed: str) -> dict[str, Any]:
        """Returns the options of a session whose turns are sampled so, whatever the program in it asks for."""
        return {
            "temperature": self.temperature,
            "sampled_logprobs": self.sampled_logprobs,
            "max_new_tokens": self.max_new_tokens,
            "seed": seed,
            "chat_template_kwargs": switches_of(self.options),
        }


class ChatAgent:
    """Implements `contracts.environment.Agent`.

    Args:
        gateway: of the session.
        session: in which every turn is sampled and recorded.
        model: its name there.
        setup: how turns are sampled.
        seed: reply k is sampled with ``key_hash(f"{seed}/{k}") >> 1``.
        context: the part of a conversation that the policy sees; None: all of it.

    Attributes:
        messages: the conversation so far, the last reply included.
        last: that reply.
    """

    def __init__(
        self,
        gateway: Gateway,
        session: GatewaySession,
        model: str,
        setup: ChatSetup,
        seed: str,
        context: Context | None = None,
    ) -> None:
        self.gateway, self.session, self.model, self.setup, self.seed = gateway, session, model, setup, seed
        self.context = context or Context()
        self.messages: tuple[Message, ...] = ()
        self.last = Reply()
        self._numbers = itertools.count()

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Asks for the next turn; a conversation that the model has no room for gets an empty, truncated one.

        Raises:
            LimitReached: the session's.
            EpisodeFailure: the gateway or its engine failed.
        """
        self.messages = tuple(messages)
        reply = await self._asked(self.context.shown(messages), tools, options)
        if reply is NO_ROOM and self.context.overflows(messages):
            reply = await self._asked(self.context.shown(messages), tools, options)
        self.messages, self.last = (*messages, reply.message), reply
        return reply

    async def _asked(self, shown: Sequence[Message], tools: Sequence[Tool], options: ChatOptions | None) -> Reply:
        number = next(self._numbers)
        body = self._request(shown, tools, options or self.setup.options, number)
        path, name = f"/sessions/{self.session.id}/v1/chat/completions", f"{self.session.id}-{number}"
        answer = await self.gateway.ask("POST", path, body, self.session.secret, name, accepted=(400, 429))
        if answer.status_code == 429:
            raise LimitReached(answer.text[:500])
        if answer.status_code == 400:
            if "context_length_exceeded" not in answer.text:
                raise EpisodeFailure("engine", f"the gateway refuses a turn: {answer.text[:500]}")
            return NO_ROOM
        found = answer.json()
        self.context.measured(found.get("usage", {}).get("total_tokens", 0))
        return reply_from_openai(found)

    def _request(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions, number: int
    ) -> dict[str, Any]:
        offered = [
            tool.definition if "function" in tool.definition else {"type": "function", "function": tool.definition}
            for tool in tools
        ]
        return {
            "model": self.model,
            "messages": [message_to_openai(message) for message in messages],
            **({"tools": offered} if offered else {}),
            "max_tokens": self.setup.max_new_tokens,
            "temperature": self.setup.temperature,
            "seed": key_hash(f"{self.seed}/{number}") >> 1,
            "chat_template_kwargs": {**options.extra, **switches_of(options)},
        }
