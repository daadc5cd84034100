"""A simulated user that is an agent, and what it must not do: a breach is asked again once, then fails the rollout.

A breach is never the policy's: such a rollout is a failure of the kind ``user``, without a reward.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Agent, EpisodeFailure, Reply
from arcforge_rl.dialogue.benchmark import USER, Case, Domain
from arcforge_rl.dialogue.person import STOP
from arcforge_rl.dialogue.world import TRANSFER, World

TOKENS = (STOP, "###TRANSFER###", "###OUT-OF-SCOPE###")
"""Tokens with which a user ends the conversation."""
BEGIN = "Begin the interaction. Remember you are the customer, and you are interacting with a customer service agent."
ATTEMPTS = 2
"""At one message."""
MOST_CALLS = 10
"""Calls of the user's own tools before it must say something."""
QUOTED = 12
"""Words in a row of the instructions that a user must not repeat."""
NAMES = re.compile(
    r"#W\d{7}|\b[a-z]+_[a-z]+_\d{4}\b|[\w.+-]+@[\w-]+\.[\w.]+|\b(?:credit_card|gift_card|paypal|certificate)_\d+\b"
    r"|\b\d{3}-\d{3}-\d{4}\b|\b[LBCD]\d{4,}\b|\b\d{10}\b|\bHAT\d{3}\b|\b(?=[A-Z0-9]*\d)(?=[A-Z0-9]*[A-Z])[A-Z0-9]{6}\b"
)
"""Identifiers that a user can only know: orders, users, addresses, payments, phones, lines, items, flights,
reservations."""


class SimulatedUser:
    """The user of one conversation, played by an agent.

    Args:
        agent: plays it.
        domain, case: with its instructions.
        world: where its calls take effect.
    """

    def __init__(self, agent: Agent, domain: Domain, case: Case, world: World) -> None:
        self.agent, self.domain, self.case, self.world = agent, domain, case, world
        role = f"{domain.guidelines}\n<scenario>\n{case.description}\n</scenario>"
        self._messages = [Message("system", role), Message("user", BEGIN)]
        self._known = [case.description]
        self._shown: list[str] = []

    async def opening(self) -> str:
        """Returns the first message."""
        return await self._say()

    async def answer(self, heard: str) -> str:
        """Returns the reply to a message of the agent.

        Raises:
            EpisodeFailure: the user does not keep to its instructions.
        """
        self._messages.append(Message("user", heard))
        self._shown.append(heard)
        return await self._say()

    async def _say(self) -> str:
        for _ in range(MOST_CALLS):
            reply = await self._asked()
            self._messages.append(reply.message)
            if not reply.calls:
                return reply.text.strip()
            for call in reply.calls:
                result = self.world.use(USER, call.name, call.arguments)
                self._known.append(result)
                self._messages.append(Message("tool", result, tool_call_id=call.id))
        raise EpisodeFailure("user", f"it made {MOST_CALLS} rounds of calls without a message")

    async def _asked(self) -> Reply:
        flaw = ""
        for _ in range(ATTEMPTS):
            reply = await self.agent.reply(self._messages, self.domain.user_tools)
            flaw = self.breach(reply)
            if not flaw:
                return reply
        raise EpisodeFailure("user", f"{flaw}: {reply.text.strip()[:160]!r}")

    def breach(self, reply: Reply) -> str:
        """Returns how a turn breaks the user's instructions, or an empty text."""
        text = reply.text.strip()
        if reply.finish_reason != "stop":
            return f"its message ended with {reply.finish_reason}"
        if reply.calls:
            offered = {tool.name for tool in self.domain.user_tools}
            strange = [call.name for call in reply.calls if call.name not in offered]
            return f"it called {strange[0][:60]!r}, which is none of its tools" if strange else ""
        if not text:
            return "it said nothing"
        if ended := [token for token in TOKENS if token in text]:
            return self._ended_wrongly(ended)
        return self._made_up(text) or self._quoted(text) or self._out_of_role(text)

    def _ended_wrongly(self, tokens: Sequence[str]) -> str:
        if not self._shown:
            return "it left before the agent said anything"
        if len(tokens) > 1:
            return f"it left in several ways: {', '.join(tokens)}"
        called = any(act.name == TRANSFER for act in self.world.done)
        asked = called or any("transfer" in text.casefold() for text in self._shown)
        return "it claims a transfer that the agent did not offer" if tokens[0] == TOKENS[1] and not asked else ""

    def _made_up(self, text: str) -> str:
        known = " ".join([*self._known, *self._shown]).casefold()
        strange = [name for name in NAMES.findall(text) if name.casefold() not in known]
        return f"it made up {strange[0]!r}" if strange else ""

    def _quoted(self, text: str) -> str:
        said = _words(text)
        for source in (self.case.scenario.get("task_instructions", ""), self.domain.guidelines):
            given = _words(source)
            runs = {tuple(given[n : n + QUOTED]) for n in range(len(given) - QUOTED + 1)}
            if any(tuple(said[n : n + QUOTED]) in runs for n in range(len(said) - QUOTED + 1)):
                return "it recites its instructions"
        return ""

    def _out_of_role(self, text: str) -> str:
        heard = " ".join([*self._known, *self._shown])
        tools = [tool.name for tool in self.domain.tools if "_" in tool.name and tool.name in text]
        if strange := [name for name in tools if name not in heard]:
            return f"it speaks of the agent's tool {strange[0]}"
        if len(text) > 60 and any(text == one.strip() for one in self._shown):
            return "it repeats the agent"
        return (
            "it speaks as the agent" if re.match(r"(agent|assistant|representative)\s*:", text, re.IGNORECASE) else ""
        )


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.casefold())
