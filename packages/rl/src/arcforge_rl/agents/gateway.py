"""A client of the gateway's sessions; a gateway that does not do its part is a failure of the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Self

import httpx

from arcforge_core.contracts.environment import EpisodeFailure
from arcforge_core.contracts.sessions import SessionRecord
from arcforge_core.errors import DataError

ATTEMPTS = 3
"""At a request that finds the gateway busy, gone or broken."""
PAUSE = 0.2
"""Seconds before the second attempt, doubled for each further one."""


@dataclass(frozen=True)
class GatewaySession:
    """An open session.

    Attributes:
        id: names it.
        url: base URL of Anthropic's clients; that of OpenAI's is ``url`` + ``/v1``.
        secret: key of its record and of clients.
    """

    id: str
    url: str
    secret: str


class Gateway(AbstractAsyncContextManager["Gateway"]):
    """Sessions of one server, over HTTP; used on one event loop.

    Args:
        url: of the server.
        key: one that may open sessions, if the server has keys.
        seconds: that an answer may take.
        patience: seconds in which a session's requests are repeated while the gateway cannot be reached.
    """

    def __init__(self, url: str, key: str | None = None, seconds: float = 600.0, patience: float = 0.0) -> None:
        self.url, self.patience = url.rstrip("/"), patience
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None)  # the number of rollouts is bounded, and each has one at a time
        self._client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=seconds, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._client.aclose()

    async def model(self) -> str:
        """Returns the name of the served model."""
        models = (await self.ask("GET", "/v1/models")).json()
        try:
            return str(models["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise EpisodeFailure("engine", f"{self.url}/v1/models names no model") from error

    async def open(self, metadata: Mapping[str, Any], limits: Mapping[str, Any]) -> GatewaySession:
        """Opens a session.

        Raises:
            EpisodeFailure: the gateway refuses, or cannot be reached.
        """
        opened = (await self.ask("POST", "/sessions", {**limits, "metadata": dict(metadata)})).json()
        try:
            return GatewaySession(opened["id"], f"{self.url}/sessions/{opened['id']}", opened["secret"])
        except (KeyError, TypeError) as error:
            raise EpisodeFailure("engine", f"{self.url} does not answer as a gateway: {str(opened)[:200]}") from error

    async def close(self, session: GatewaySession) -> SessionRecord:
        """Ends a session and returns all that was sampled in it.

        Raises:
            EpisodeFailure: the record is lost, or malformed.
        """
        answer = await self.ask("DELETE", f"/sessions/{session.id}", key=session.secret)
        try:
            return SessionRecord.from_json(answer.json())
        except (DataError, ValueError) as error:
            raise EpisodeFailure("engine", str(error)) from error

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
        name: str | None = None,
        accepted: tuple[int, ...] = (),
    ) -> httpx.Response:
        """Sends a request, up to `ATTEMPTS` times while the gateway is busy or broken, and returns the answer.

        One of a session is repeated for `patience` seconds while nobody listens: a gateway may start again.

        Args:
            method: of HTTP.
            path: below the gateway's URL.
            body: JSON.
            key: instead of the gateway's.
            name: of a request that must not be done twice: a repetition gets the recorded reply.
            accepted: codes that are answers, besides those of success.

        Raises:
            EpisodeFailure: there is no answer.
        """
        headers = {"authorization": f"Bearer {key}"} if key else {}
        headers |= {"idempotency-key": name} if name else {}
        reason, attempt = "", 0
        last = time.monotonic() + (self.patience if key else 0.0)
        while attempt < ATTEMPTS:
            if reason:
                await asyncio.sleep(PAUSE * 2 ** max(attempt - 1, 0))
            try:
                answer = await self._client.request(method, path, json=body, headers=headers)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
                attempt += not isinstance(error, httpx.ConnectError) or time.monotonic() > last
                continue
            attempt += 1
            if answer.is_success or answer.status_code in accepted:
                final = answer.status_code != 429 or answer.headers.get("x-should-retry") == "false"
                if final:
                    return answer
            reason = f"{answer.status_code}: {answer.text[:500]}"
            if answer.status_code < 500 and answer.status_code != 429:
                break
        raise EpisodeFailure("engine", f"{method} {self.url}{path.partition('?')[0]}: {reason}")
