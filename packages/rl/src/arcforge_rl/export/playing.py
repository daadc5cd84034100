"""Play of an exported package: the environment of its configuration, and a solver on a server that imposes the model
and its sampling. Imports no other library's code."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arcforge_core.chat.openai import message_to_openai, reply_from_openai, switches_of
from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.environment import Agent, Agents, Environment, EpisodeFailure, Reply
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.entries import entry_of
from arcforge_rl.configs.others import agent_of
from arcforge_rl.endpoints import Endpoint, JsonServer, NoAnswer

CONFIG_FILE = "environment.json"
"""Beside the module of an exported package."""
OVERFLOWS = (
    "context_length_exceeded", "maximum context length", "exceeds the context window", "prompt is too long",
    "reduce the length of the messages", "exceeds the maximum number of tokens", "maximum prompt length is",
)  # fmt: skip
"""Parts of the messages with which servers refuse a conversation that the model has no room for."""


@dataclass(frozen=True)
class Exported:
    """The configuration of an exported package.

    Attributes:
        environment: all fields of the environment's config.
        agents: fields of the agents besides the solver, by name.
    """

    environment: Mapping[str, Any]
    agents: Mapping[str, Any]

    @classmethod
    def beside(cls, module: str) -> Exported:
        """Reads the file beside a module's file."""
        found = json.loads(Path(module).with_name(CONFIG_FILE).read_text(encoding="utf-8"))
        return cls(found["environment"], found["agents"])

    def fields(self, split: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the environment's config, with another split and other options.

        Args:
            split: ``train`` or ``heldout``; None: as exported.
            options: fields that replace exported ones.
        """
        return {**self.environment, **options, **({} if split is None else {"split": split})}


def environment_of(fields: Mapping[str, Any]) -> Environment:
    """Returns the environment of a config's fields, the same one in all of a process.

    Raises:
        ConfigError: there is no such field, or its value cannot be used.
        UnknownComponentError: the environment is not installed.
    """
    return _built(json.dumps(dict(fields), sort_keys=True))


@functools.cache
def _built(text: str) -> Environment:
    fields = json.loads(text)
    component = registry().get("environment", fields["name"])
    config = entry_of(component.load_schema(), fields, "environment", f"environment={component.name}")
    environment: Environment = component.load()(config)
    return environment


def company(solver: Agent, agents: Mapping[str, Any], seed: str) -> Agents:
    """Returns the agents of an episode.

    Args:
        solver: the policy.
        agents: fields of the others, by name.
        seed: of their replies.

    Raises:
        ConfigError: the variable with the key of one is not set.
    """
    others: dict[str, Any] = {
        name: Endpoint(name, agent_of(fields, name), None, f"{seed}/{name}") for name, fields in agents.items()
    }
    return Agents(solver, **others)


class ServedSolver:
    """Asks a server for chat completions; implements `contracts.environment.Agent`.

    A server that ends the rollout, or has no room for the conversation, gets no further turn: the reply is empty and
    cut off, as at any other limit, and the environment judges the work so far.

    Args:
        server: repeats a request that fails.
        model: its name there.
        name: of the rollout; a request that is repeated has the name of the first.
        ended: whether the rollout has been ended from outside.
        system: text before the environment's own system message; empty for none.
    """

    def __init__(self, server: JsonServer, model: str, name: str, ended: Callable[[], bool], system: str = "") -> None:
        self.server, self.model, self.name, self.ended, self.system = server, model, name, ended, system
        self._numbers = itertools.count()

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Asks for the next turn.

        Raises:
            EpisodeFailure: the server gave none.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [message_to_openai(message) for message in with_system(messages, self.system)],
        }
        if tools:
            definitions = [tool.definition for tool in tools]
            body["tools"] = [one if "function" in one else {"type": "function", "function": one} for one in definitions]
        if options is not None:
            body["chat_template_kwargs"] = {**options.extra, **switches_of(options)}
        name = f"{self.name}-{next(self._numbers)}"
        try:
            answer = await self.server.post("/v1/chat/completions", body, with_readable_calls, name)
        except NoAnswer as error:
            refused = (error.refused or "").lower()
            if self.ended() or any(part in refused for part in OVERFLOWS):
                return Reply(finish_reason="length")
            raise EpisodeFailure("engine", str(error)) from error
        return reply_from_openai(answer)


def with_system(messages: Sequence[Message], text: str) -> list[Message]:
    """Returns a conversation with a text before its system message, or as one."""
    if not text:
        return [*messages]
    if messages and messages[0].role == "system":
        return [replace(messages[0], content=f"{text}\n\n{messages[0].content}"), *messages[1:]]
    return [Message("system", text), *messages]


def with_readable_calls(answer: Any) -> Any:
    """Returns a chat completion without calls whose arguments are no JSON object: the model's mistakes are none of the
    server's."""
    try:
        (choice,) = answer["choices"]
        calls = [call for call in choice["message"].get("tool_calls") or () if _is_readable(call)]
    except (KeyError, TypeError, ValueError, AttributeError):
        return answer  # `reply_from_openai` says what is wrong
    return {**answer, "choices": [{**choice, "message": {**choice["message"], "tool_calls": calls}}]}


def _is_readable(call: Mapping[str, Any]) -> bool:
    arguments = call["function"].get("arguments") or {}
    try:
        return isinstance(json.loads(arguments) if isinstance(arguments, str) else arguments, dict)
    except ValueError:
        return False
