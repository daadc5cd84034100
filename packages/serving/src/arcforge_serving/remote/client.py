"""HTTP to a server that generates: errors in our words, and nothing that may have been done is asked for twice."""

from __future__ import annotations

import time
from typing import Any

import httpx

from arcforge_core.errors import ConfigError
from arcforge_serving.configs import RemoteEngineConfig
from arcforge_serving.engine.errors import RemoteError

KEY = "ARCFORGE_ENGINE_KEY"
REFUSED = (429, 503)
"""Statuses of requests that a server has turned away before it began with them."""
SHOWN = 500
CONNECT_SECONDS = 10.0
"""How long a server may take to accept a connection."""
PAUSE = 0.25
"""Seconds before the first further attempt; each next one waits twice as long."""


class Client:
    """Posts JSON to one server, from any thread.

    Args:
        config: where it is, and how long things may take.
        key: sent as a bearer token; none when empty.
    """

    def __init__(self, config: RemoteEngineConfig, key: str) -> None:
        self._config = config
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(config.timeout_seconds, connect=CONNECT_SECONDS, pool=None)
        limits = httpx.Limits(max_connections=config.concurrency + 1)  # one is for aborts
        self._http = httpx.Client(base_url=config.url, headers=headers, timeout=timeout, limits=limits)

    def close(self) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        """Returns the JSON that a path gives; see `post`."""
        return self._ask("GET", path, {}, None)

    def post(self, path: str, body: dict[str, Any] | None = None, **query: Any) -> Any:
        """Posts an object and returns the JSON of the answer, None for an empty one.

        What the server has surely not begun (no connection, or turned away) is tried again, ``engine.retries`` times;
        nothing else is.

        Raises:
            ConfigError: there is no server, it wants another key, does not know the path, or refuses the request.
            RemoteError: it failed, hung up or took too long; what was asked for may have been done.
        """
        return self._ask("POST", path, body or {}, query)

    def _ask(self, method: str, path: str, body: dict[str, Any], query: dict[str, Any] | None) -> Any:
        content = None if method == "GET" else body
        for attempt in range(self._config.retries + 1):
            last = attempt == self._config.retries
            try:
                response = self._http.request(method, path, json=content, params=query)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if last:
                    raise ConfigError("engine.url", self._config.url, f"cannot be reached: {error}") from error
            except httpx.TimeoutException as error:
                limit = f"engine.timeout_seconds={self._config.timeout_seconds}"
                raise RemoteError(f"{path} of {self._config.url} took longer than {limit}") from error
            except httpx.TransportError as error:
                raise RemoteError(f"{self._config.url} hung up in the middle of {path}: {error}") from error
            else:
                if response.status_code not in REFUSED or last:
                    return self._read(path, response)
            time.sleep(PAUSE * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _read(self, path: str, response: httpx.Response) -> Any:
        status = response.status_code
        if response.is_success:
            try:
                return response.json() if response.content else None
            except ValueError as error:
                raise RemoteError(f"{path} of {self._config.url} does not answer with JSON") from error
        said, param = _said(response)
        if status in (401, 403):
            raise ConfigError("engine.url", self._config.url, f"{path} is refused ({KEY} is its key): {said}")
        if status in (404, 405):
            raise ConfigError("engine.url", self._config.url, f"there is no {path}, see docs/engine.md: {said}")
        if status < 500 and status not in REFUSED:
            raise ConfigError(param or "request", path, f"is refused by {self._config.url}: {said}")
        raise RemoteError(f"{path} of {self._config.url} failed with status {status}: {said}")


def _said(response: httpx.Response) -> tuple[str, str | None]:
    """Returns the message of an error and the field that it names, of all shapes that these servers use."""
    try:
        body = response.json()
    except ValueError:
        return response.text[:SHOWN], None
    inner = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(inner, dict):
        return str(inner)[:SHOWN], None
    message = inner.get("message") or inner.get("detail") or inner
    return str(message)[:SHOWN], inner.get("param")
