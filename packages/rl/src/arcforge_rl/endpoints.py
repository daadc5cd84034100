"""Servers of models that answer one JSON request at a time: judges, reward models, simulated users."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from arcforge_core.errors import ConfigError

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
                except (httpx.TransportError, ValueError) as error:
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
