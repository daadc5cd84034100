"""HTTP to a server that generates: typed errors, and nothing that may have been done is asked for twice."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_serving.configs import RemoteEngineConfig
from arcforge_serving.engine.errors import RemoteError, RemoteTimeoutError, TurnedAwayError

T = TypeVar("T")
KEY = "ARCFORGE_ENGINE_KEY"
REFUSED = (429, 503)
"""Statuses of requests that a server has turned away before it began with them."""
SHOWN = 500
CONNECT_SECONDS = 10.0
"""How long a server may take to accept a connection."""
PAUSE = 0.25
"""Seconds before the first further attempt; each next one waits twice as long."""
NOT_FINITE = "not_finite"
"""Code of a sequence whose logits are not finite, of our server."""
REQUEST, UPDATE, ANSWER = "timeout_seconds", "update_seconds", "answer_seconds"
"""Fields of the config: seconds that a request, a weight update and an answer about the server's state may take."""
PART = 2**20
DATA, DONE = "data: ", "[DONE]"


class Client:
    """Asks one server. An event loop on a thread of its own has the connections; all methods are thread-safe.

    Args:
        config: where it is, and how long things may take.
        key: sent as a bearer token; none when empty.
    """

    def __init__(self, config: RemoteEngineConfig, key: str) -> None:
        self._config = config
        self._seconds = {REQUEST: config.timeout_seconds, UPDATE: config.update_seconds, ANSWER: config.answer_seconds}
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=None)  # the engine bounds its requests
        self._http = httpx.AsyncClient(base_url=config.url, headers=headers, timeout=timeout, limits=limits)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="arcforge-client", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes the connections; open requests end with an error."""
        if not self.loop.is_closed():
            self.run(self._close())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    async def _close(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._http.aclose()

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and returns its result."""
        return self.spawn(work).result()

    def get(self, path: str) -> Any:
        """Returns the JSON of a path that says what the server does; see `ask`."""
        return self.run(self.ask("GET", path, limit=ANSWER))

    def text(self, path: str, method: str = "GET") -> str:
        """Returns the text of such a path; see `ask`."""
        return self.run(self._whole(method, path, None, {}, {}, ANSWER)).text

    def post(self, path: str, body: dict[str, Any] | None = None, limit: str = REQUEST, **query: Any) -> Any:
        """Posts an object and returns the JSON of the answer, None for an empty one; see `ask`."""
        return self.run(self.ask("POST", path, body or {}, query, limit=limit))

    async def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        limit: str = REQUEST,
    ) -> Any:
        """Returns the JSON of an answer, None for an empty one, within the seconds of the config's field `limit`.

        Only a request that the server has surely not begun (no connection, or turned away) is repeated,
        ``engine.retries`` times.

        Raises:
            ConfigError: the server wants another key, does not know the path, or refuses the request.
            CheckpointError: the logits of a sequence are not finite.
            TurnedAwayError: it is not there, or takes no request.
            RemoteTimeoutError: it took too long.
            RemoteError: it failed or hung up; the request may have been executed.
        """
        response = await self._whole(method, path, body, query or {}, headers or {}, limit)
        try:
            return response.json() if response.content else None
        except ValueError as error:
            raise RemoteError(f"{path} of {self._config.url} does not answer with JSON") from error

    def upload(self, path: str, file: Path, **query: Any) -> Any:
        """Posts the bytes of a weight update and returns the JSON of the answer; see `ask`."""

        async def work() -> Any:
            async with self._answer("POST", path, {"content": lambda: _parts(file)}, query, {}, UPDATE) as response:
                return json.loads(await response.aread())

        return self.run(work())

    async def _whole(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        query: Mapping[str, Any],
        headers: Mapping[str, str],
        limit: str,
    ) -> httpx.Response:
        given = {} if body is None else {"json": lambda: body}
        async with self._answer(method, path, given, query, headers, limit) as response:
            await response.aread()
            return response

    async def events(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> AsyncIterator[Any]:
        """Yields the JSON of each server-sent event of an answer, up to its end; raises as `ask`.

        Raises:
            RemoteError: also for an event that says that something went wrong, and for an answer that breaks off.
        """
        async with self._answer("POST", path, {"json": lambda: body}, {}, headers) as response:
            async for line in response.aiter_lines():
                if not line.startswith(DATA):
                    continue
                if line == DATA + DONE:
                    return
                try:
                    event = json.loads(line.removeprefix(DATA))
                except ValueError as error:
                    raise RemoteError(f"{path} of {self._config.url} sends events without JSON") from error
                if isinstance(event, dict) and event.get("error"):
                    said, param, code = _said(event)
                    if code == NOT_FINITE:
                        raise CheckpointError(said)
                    raise RemoteError(f"{path} of {self._config.url} failed: {said}" + (f" ({param})" if param else ""))
                yield event
        raise RemoteError(f"{self._config.url} hung up in the middle of {path}")

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Callable[[], Any]],
        query: Mapping[str, Any],
        headers: Mapping[str, str],
        limit: str = REQUEST,
    ) -> AsyncIterator[httpx.Response]:
        """Yields an answer that is a success; the block reads it within the request's time.

        `body` makes httpx's keyword arguments for each attempt.
        """
        config = self._config
        seconds = self._seconds[limit]
        try:
            async with asyncio.timeout(seconds):
                for attempt in range(config.retries + 1):
                    last = attempt == config.retries
                    try:
                        given: dict[str, Any] = {name: make() for name, make in body.items()}
                        request = self._http.build_request(method, path, params=query, headers=dict(headers), **given)
                        response = await self._http.send(request, stream=True)
                    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                        if last:
                            raise TurnedAwayError(f"{config.url} cannot be reached: {error}") from error
                    else:
                        try:
                            if response.is_success:
                                yield response
                                return
                            await response.aread()
                            if response.status_code not in REFUSED or last:
                                raise self._problem(path, response)
                        finally:
                            await response.aclose()
                    await asyncio.sleep(PAUSE * 2**attempt)
        except TimeoutError as error:
            raise RemoteTimeoutError(f"{path} of {config.url} took longer than engine.{limit}={seconds}") from error
        except httpx.TransportError as error:
            raise RemoteError(f"{config.url} hung up in the middle of {path}: {error}") from error

    def _problem(self, path: str, response: httpx.Response) -> Exception:
        """Returns the error that an answer means."""
        status, url = response.status_code, self._config.url
        try:
            said, param, code = _said(response.json())
        except ValueError:
            said, param, code = response.text[:SHOWN], None, None
        if code == NOT_FINITE:
            return CheckpointError(said)
        if status in (401, 403):
            return ConfigError("engine.url", url, f"{path} is refused ({KEY} is its key): {said}")
        if status in (404, 405):
            return ConfigError("engine.url", url, f"there is no {path}, see docs/engine.md: {said}")
        if status in REFUSED:
            return TurnedAwayError(f"{path} of {url} failed with status {status}: {said}")
        if status < 500:
            return ConfigError(param or "request", path, f"is refused by {url}: {said}")
        return RemoteError(f"{path} of {url} failed with status {status}: {said}")


async def _parts(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as opened:
        while part := await asyncio.to_thread(opened.read, PART):
            yield part


def _said(body: Any) -> tuple[str, str | None, str | None]:
    """Returns the message of an error, the field that it names and its code, of all shapes that these servers use."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(inner, dict):
        return str(inner)[:SHOWN], None, None
    message = inner.get("message") or inner.get("detail") or inner
    code = inner.get("code")
    return str(message)[:SHOWN], inner.get("param"), code if isinstance(code, str) else None
