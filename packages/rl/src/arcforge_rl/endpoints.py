"""Servers of models that answer one JSON request at a time: judges, reward models, simulated users, agents."""

from __future__ import annotations

import asyncio
import itertools
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpx

from arcforge_core.chat.openai import message_to_openai, reply_from_openai
from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.environment import EpisodeFailure, Reply
from arcforge_core.data.split import key_hash
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.configs.others import AgentConfig

if TYPE_CHECKING:  # imports torch
    from arcforge_core.episodes.asking import Asking

PAUSE = 0.5
"""Seconds before the second attempt at a request, doubled for each further one."""
T = TypeVar("T")


class NoAnswer(Exception):
    """A server gave no usable answer; the message says why.

    Attributes:
        refused: text of the answer, if the server refused the request as such.
    """

    def __init__(self, reason: str, refused: str | None = None) -> None:
        super().__init__(reason)
        self.refused = refused


@dataclass(frozen=True)
class JsonServer:
    """A server, and how to ask it.

    Attributes:
        url: with or without a trailing ``/v1``.
        key: sent as bearer; None sends none.
        seconds: that an answer may take.
        attempts: requests until one is answered.
    """

    url: str
    key: str | None = field(repr=False)
    seconds: float
    attempts: int

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T], name: str | None = None) -> T:
        """Returns what `read` makes of the answer; asks again while the server is busy, fails, is late or unreadable.

        Args:
            path: below the server's URL.
            body: JSON.
            read: may raise ValueError.
            name: of a request that must not be done twice: a repetition gets the recorded answer.

        Raises:
            NoAnswer: no attempt was answered, or the request was refused.
        """
        url = f"{self.url.rstrip('/').removesuffix('/v1')}{path}"
        headers = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        headers |= {} if name is None else {"idempotency-key": name}
        reason, secure = "", url.startswith("https:")  # reading the certificates takes 0.2 s
        async with httpx.AsyncClient(headers=headers, timeout=self.seconds, verify=secure) as client:
            for attempt in range(self.attempts):
                await asyncio.sleep(PAUSE * 2 ** (attempt - 1) if attempt else 0.0)
                try:
                    answer = await client.post(url, json=body)
                    if answer.is_success:
                        return read(answer.json())
                except (httpx.TransportError, ValueError, RecursionError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    continue
                reason = f"HTTP {answer.status_code}: {answer.text[:300]}"
                if answer.status_code < 500 and answer.status_code != 429:
                    raise NoAnswer(f"{url}: {reason}", refused=answer.text)
        raise NoAnswer(f"{url}: {reason}")


def key_in(variable: str | None, field_name: str) -> str | None:
    """Returns the key in an environment variable; None without one.

    Raises:
        ConfigError: the variable is not set.
    """
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise ConfigError(field_name, variable, "must be an environment variable that is set")
    return key


def add_server(parser: ArgumentParser, role: str) -> None:
    """Adds the options that name a model on a server of OpenAI's chat completions.

    Args:
        parser: of a command.
        role: of the model in the command.
    """
    parser.add_argument("--url", help=f"server of {role}")
    parser.add_argument("--model", metavar="NAME", help="its name there")
    parser.add_argument("--key-variable", metavar="VARIABLE", help="environment variable with the server's key")


def server_in(options: Namespace, **sampling: Any) -> AgentConfig | None:
    """Returns the server that the options of `add_server` name; None without ``--url``.

    Args:
        options: of a command.
        sampling: further fields.

    Raises:
        ArcforgeError: the address is none, the variable is not set, or an option belongs to no server.
    """
    if options.url is None:
        if options.model or options.key_variable:
            raise ArcforgeError("--model and --key-variable are of a server: name --url")
        return None
    if not _is_address(options.url):
        raise ConfigError("--url", options.url, "must begin with http:// or https://, and name a host")
    key_in(options.key_variable, "--key-variable")
    config = AgentConfig(url=options.url, model=options.model, key_variable=options.key_variable, **sampling)
    config.check("--url")
    return config


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class Endpoint:
    """Asks a server for chat completions.

    Args:
        name: of the agent.
        config: where the server is, and how it samples.
        asking: of the policy, whose engine does not wait meanwhile; None outside a rollout.
        seed: reply k is sampled with ``key_hash(f"{seed}/{k}") >> 1``.
        schema: JSON schema that the server is asked to follow; None for free text.

    Raises:
        ConfigError: the variable with the key is not set.
    """

    def __init__(
        self,
        name: str,
        config: AgentConfig,
        asking: Asking | None,
        seed: str,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.config, self.asking, self.seed, self.schema = name, config, asking, seed, schema
        self._numbers = itertools.count()
        key = key_in(config.key_variable, f"agents.{name}.key_variable")
        self._server = JsonServer(str(config.url), key, config.seconds, config.attempts)

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
        if self.schema is not None:
            named = {"name": "reply", "schema": dict(self.schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        if self.asking is None:
            return reply_from_openai(await self._ask(body), f"agents.{self.name}: ")
        with self.asking.away():
            return reply_from_openai(await self._ask(body), f"agents.{self.name}: ")

    async def _ask(self, body: Mapping[str, Any]) -> Any:
        try:
            return await self._server.post("/v1/chat/completions", body, lambda answer: answer)
        except NoAnswer as error:
            raise EpisodeFailure("engine", f"agents.{self.name}: {error}") from error
