"""Agents of a rollout besides the policy, on its engine, one of their own, or a server. None of them is trained."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from arcforge_core.chat.openai import message_to_openai, messages_from_openai
from arcforge_core.checkpoint.pretrained import load_with_tokenizer
from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.environment import Agent, EpisodeFailure, Reply
from arcforge_core.contracts.hardware import Hardware
from arcforge_core.data.split import key_hash
from arcforge_core.episodes.agent import PolicyAgent, SamplingSetup, build_dialogue
from arcforge_core.episodes.asking import Asking, Streams
from arcforge_core.errors import ConfigError
from arcforge_core.generation.engine import build_engine
from arcforge_core.plugins.loader import registry
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_rl.configs.entries import entry_of
from arcforge_rl.configs.others import POLICY, AgentConfig

PAUSE = 0.5
"""Seconds before the second attempt at a request, doubled for each further one."""
LENGTH = "length"
MakeAgent = Callable[[Asking, int, str], Agent]
"""Makes the agent of a rollout from the way to the policy's engine, its number and its seed."""


@dataclass(frozen=True)
class Aside:
    """An agent on an engine: a failure of that engine is one of the rollout, and not an empty reply.

    Attributes:
        name: of the agent.
        agent: samples.
        asking: of the policy.
        waits: whether the policy's engine waits for it, because it is the same.
    """

    name: str
    agent: PolicyAgent
    asking: Asking
    waits: bool

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Samples the next turn.

        Raises:
            EpisodeFailure: the engine failed.
        """
        if self.waits:
            reply = await self.agent.reply(messages, tools, options)
        else:
            with self.asking.away():
                reply = await self.agent.reply(messages, tools, options)
        if self.agent.failure is not None:
            raise EpisodeFailure(self.agent.failure.kind, f"agents.{self.name}: {self.agent.failure.reason}")
        return reply


class Endpoint:
    """Asks a server for chat completions.

    Args:
        name: of the agent.
        config: where the server is, and how it samples.
        asking: of the policy, whose engine does not wait meanwhile; None outside a rollout.
        seed: reply k is sampled with ``key_hash(f"{seed}/{k}") >> 1``.

    Raises:
        ConfigError: the variable with the key is not set.
    """

    def __init__(self, name: str, config: AgentConfig, asking: Asking | None, seed: str) -> None:
        self.name, self.config, self.asking, self.seed = name, config, asking, seed
        self._numbers = itertools.count()
        self._headers = {} if (key := key_of(name, config)) is None else {"authorization": f"Bearer {key}"}

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Asks for the next turn, `attempts` times while the server is busy, fails or does not answer in time.

        Raises:
            EpisodeFailure: there is no reply.
        """
        config, number = self.config, next(self._numbers)
        thinking = (options or ChatOptions(enable_thinking=config.thinking == "on")).enable_thinking
        body: dict[str, Any] = {
            "messages": [message_to_openai(message) for message in messages],
            "max_tokens": config.max_new_tokens,
            "temperature": config.temperature,
            "seed": key_hash(f"{self.seed}/{number}") >> 1,
        }
        body |= {} if config.model is None else {"model": config.model}
        body |= {"tools": [{"type": "function", "function": tool.definition} for tool in tools]} if tools else {}
        body |= {"chat_template_kwargs": {"enable_thinking": True}} if thinking else {}
        if self.asking is None:
            return reply_of(await self._ask(body), self.name)
        with self.asking.away():
            return reply_of(await self._ask(body), self.name)

    async def _ask(self, body: Mapping[str, Any]) -> Any:
        url = f"{str(self.config.url).rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        reason = ""
        async with httpx.AsyncClient(headers=self._headers, timeout=self.config.seconds) as client:
            for attempt in range(self.config.attempts):
                await asyncio.sleep(PAUSE * 2 ** (attempt - 1) if attempt else 0.0)
                try:
                    answer = await client.post(url, json=body)
                    if answer.is_success:
                        return answer.json()
                except (httpx.TransportError, ValueError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    continue
                reason = f"HTTP {answer.status_code}: {answer.text[:300]}"
                if answer.status_code < 500 and answer.status_code != 429:
                    break
        raise EpisodeFailure("engine", f"agents.{self.name}: {url}: {reason}")


def reply_of(answer: Any, name: str) -> Reply:
    """Returns the reply in a chat completion; calls of one that was cut off are left out.

    Raises:
        EpisodeFailure: it is none, or it did not end by itself or at its limit.
    """
    try:
        (choice,) = answer["choices"]
        (message,) = messages_from_openai([choice["message"]])
        reason = str(choice["finish_reason"])
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise EpisodeFailure("engine", f"agents.{name}: no chat completion: {error}: {str(answer)[:200]}") from error
    if reason not in ("stop", "tool_calls", LENGTH):
        raise EpisodeFailure("engine", f"agents.{name}: a turn ended with {reason}")
    cut = reason == LENGTH
    return Reply(message.content, message.reasoning or "", () if cut else message.tool_calls, LENGTH if cut else "stop")


def key_of(name: str, config: AgentConfig) -> str | None:
    """Returns the key of an agent's server.

    Raises:
        ConfigError: its variable is not set.
    """
    if config.key_variable is None:
        return None
    key = os.environ.get(config.key_variable)
    if not key:
        raise ConfigError(
            f"agents.{name}.key_variable", config.key_variable, "must be an environment variable that is set"
        )
    return key


class Others:
    """The makers of the agents of a run, and their engines.

    Args:
        configs: agents by name.
        tokenizer, positions: of the policy.
        hardware: runs engines of their own.

    Raises:
        ConfigError: an agent cannot be built.
        CheckpointError: a checkpoint cannot be read.
    """

    def __init__(
        self, configs: Mapping[str, AgentConfig], tokenizer: Tokenizer, positions: int, hardware: Hardware
    ) -> None:
        self._engines: list[Any] = []
        self.makers: dict[str, MakeAgent] = {
            name: self._maker(name, config, tokenizer, positions, hardware) for name, config in configs.items()
        }

    def close(self) -> None:
        """Ends the engines."""
        for engine in self._engines:
            engine.close()

    def _maker(
        self, name: str, config: AgentConfig, tokenizer: Tokenizer, positions: int, hardware: Hardware
    ) -> MakeAgent:
        if config.url is not None:
            Endpoint(name, config, None, "")  # the key is there
            return lambda asking, number, seed: Endpoint(name, config, asking, f"{seed}/{name}")
        own: Streams | None = None
        if config.engine != POLICY:
            own, tokenizer, positions = self._engine(name, config, hardware)
        dialogue = build_dialogue(tokenizer, config.thinking, f"agents.{name}.thinking")
        setup = SamplingSetup(dialogue, config.max_new_tokens, config.temperature, positions)

        def make(asking: Asking, number: int, seed: str) -> Agent:
            agent = PolicyAgent(own or asking, number, setup, f"{seed}/{name}")
            return Aside(name, agent, asking, waits=own is None)

        return make

    def _engine(self, name: str, config: AgentConfig, hardware: Hardware) -> tuple[Streams, Tokenizer, int]:
        schema = registry().get("engine", str(config.engine)).load_schema()
        options = entry_of(schema, config.options, f"agents.{name}.options", f"engine={config.engine}")
        model, tokenizer = load_with_tokenizer(str(config.init), hardware)
        engine: Any = build_engine(options, model.requires_grad_(False))
        if not hasattr(engine, "submit"):
            raise ConfigError(f"agents.{name}.engine", config.engine, "must take requests one by one, as paged does")
        engine.start()
        self._engines.append(engine)
        return Streams(engine), tokenizer, model.config.max_position_embeddings
