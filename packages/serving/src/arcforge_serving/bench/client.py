"""A client of OpenAI's two APIs that notes when what came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

from arcforge_core.errors import ArcforgeError, ConfigError, nearest
from arcforge_serving.bench.workloads import Message

SHOWN_CHARACTERS = 200
SECONDS_TO_CONNECT = 10.0
PATHS = {"completions": "completions", "chat": "chat/completions"}
TEXTS = ("content", "reasoning_content", "reasoning", "text")
"""Where a chunk may hold text, of either API."""


@dataclass
class StreamedReply:
    """An answer; seconds count from when the request was sent.

    Attributes:
        text: all of it.
        arrivals: when each chunk came that brought something.
        seconds: until the stream's end, or the error.
        prompt_tokens, completion_tokens, cached_tokens: of the server's usage; None where it gave none.
        finish_reason: as the server says.
        error: what kind of thing went wrong, None when nothing did.
        message: more about it.
    """

    text: str = ""
    arrivals: list[float] = field(default_factory=list)
    seconds: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    message: str = ""


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    """Yields the lines of a stream, which end where events' lines do: httpx's own end at Unicode's line ends, too."""
    rest = b""
    async for part in answer.aiter_bytes():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r").decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


class StreamError(Exception):
    """An answer that cannot be used: the kind of error, and its message."""


class Client:
    """Sends requests to one model; to be used as a context.

    Args:
        url: of the API, e.g. ``http://127.0.0.1:8000/v1``.
        api: ``completions`` or ``chat``.
        key: sent as a bearer token.
        timeout: seconds for a whole request.
        extra: further fields of a request's body.

    Raises:
        ConfigError: the URL is none, or the key cannot be sent.
    """

    def __init__(
        self, url: str, api: str, key: str | None = None, timeout: float = 600.0, extra: dict[str, Any] | None = None
    ) -> None:
        self.api, self.timeout, self.extra = api, timeout, extra or {}
        self.model: str | None = None
        self.counts = True  # whether the server may be asked for its usage
        self._has_key = key is not None
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.url = url.rstrip("/")
        try:
            address = httpx.URL(self.url)
            if address.scheme not in ("http", "https") or not address.host:
                raise httpx.InvalidURL("must begin with http:// or https:// and name a host")
            self.shown = str(address.copy_with(userinfo=b""))  # without what it may hold of a password
            self._http = httpx.AsyncClient(
                headers=headers,
                timeout=httpx.Timeout(timeout, connect=SECONDS_TO_CONNECT),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            )
        except (httpx.InvalidURL, ValueError) as error:  # ValueError: a header that HTTP cannot carry
            raise ConfigError("url", url, str(error)) from error

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.aclose()

    # ---- before work -------------------------------------------------------------------------------------------------

    async def connect(self, model: str | None) -> None:
        """Finds the model and tries a request of one token.

        Args:
            model: its name; None takes the one that the server lists.

        Raises:
            ArcforgeError: the server cannot be reached, refuses the key, has no such model or does not answer.
        """
        listed = await self._models()
        if model is None:
            if len(listed) != 1:
                there = f"has {', '.join(listed)}" if listed else "lists none"
                raise ConfigError("model_name", None, f"must be given: {self.shown} {there}")
            (model,) = listed
        elif listed and model not in listed:
            raise ConfigError("model_name", model, f"{self.shown} has {', '.join(listed)}{nearest(model, listed)}")
        self.model = model
        reply = await self.complete([Message("user", "one two")], 1)
        if reply.error in ("HTTP 400", "HTTP 422") and "stream_options" in reply.message:
            self.counts = False
            reply = await self.complete([Message("user", "one two")], 1)
        if reply.error in ("HTTP 401", "HTTP 403"):
            raise self._refused_key(reply.error, reply.message)
        if reply.error:
            raise self._error(f"a request of one token fails: {reply.error}: {reply.message}")

    async def _models(self) -> list[str]:
        """Returns the names that the server lists; none where it has no such route."""
        try:
            answer = await self._http.get(f"{self.url}/models")
        except httpx.TimeoutException as error:
            raise self._error(f"no answer in time ({type(error).__name__})") from error
        except httpx.HTTPError as error:
            raise self._error(f"cannot be reached: {error or type(error).__name__}") from error
        if answer.status_code in (401, 403):
            raise self._refused_key(f"HTTP {answer.status_code}", reason(answer.text))
        if answer.status_code != 200:
            return []
        try:
            return [str(card["id"]) for card in answer.json()["data"]]
        except (ValueError, LookupError, TypeError) as error:
            raise self._error(f"/models answers no list: {answer.text[:SHOWN_CHARACTERS]!r}") from error

    def _refused_key(self, status: str, message: str) -> ArcforgeError:
        which = "refuses the key of ARCFORGE_API_KEY" if self._has_key else "wants a key: set ARCFORGE_API_KEY"
        return self._error(f"{which} ({status}: {message})")

    def _error(self, what: str) -> ArcforgeError:
        return ArcforgeError(f"url={self.shown}: {what}")

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> StreamedReply:
        """Sends a request and reads its stream to the end; what goes wrong is noted in the reply."""
        body: dict[str, Any] = {"model": self.model, "stream": True, "max_tokens": max_tokens, **self.extra}
        if self.counts:
            body["stream_options"] = {"include_usage": True}
        if self.api == "chat":
            body["messages"] = [{"role": m.role, "content": m.content} for m in messages]
        else:
            body["prompt"] = "\n".join(message.content for message in messages)
        reply, start = StreamedReply(), time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout):
                await self._stream(body, reply, start)
        except StreamError as error:
            reply.error, reply.message = error.args
        except (TimeoutError, httpx.TimeoutException) as error:
            reply.error, reply.message = "timeout", f"after {self.timeout:g} s ({type(error).__name__})"
        except httpx.ConnectError as error:
            reply.error, reply.message = "connection", str(error)
        except httpx.HTTPError as error:  # the server went away in the middle
            reply.error, reply.message = "broken stream", str(error) or type(error).__name__
        reply.seconds = time.perf_counter() - start
        return reply

    async def _stream(self, body: dict[str, Any], reply: StreamedReply, start: float) -> None:
        async with self._http.stream("POST", f"{self.url}/{PATHS[self.api]}", json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise StreamError(f"HTTP {answer.status_code}", reason(answer.text))
            done = False
            async for line in _lines(answer):
                if not line.startswith("data:"):
                    continue  # comments, names of events, what stands between events
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    done = True
                    break
                self._take(data, reply, time.perf_counter() - start)
        if not done and reply.finish_reason is None:
            raise StreamError("broken stream", "it ends without [DONE] and without a finish reason")
        if not reply.arrivals:
            raise StreamError("empty answer", f"no token came; finish reason {reply.finish_reason}")

    def _take(self, data: str, reply: StreamedReply, now: float) -> None:
        """Takes one event of the stream."""
        try:
            event = json.loads(data)
            if event.get("error"):
                raise StreamError("error in the stream", reason(data))
            usage = event.get("usage")
            if usage:
                reply.prompt_tokens, reply.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
                reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            for choice in event.get("choices") or ():
                part = choice.get("delta") or choice
                text = "".join(part.get(name) or "" for name in TEXTS)
                reply.text += text
                reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
                # a token may have no text of its own: part of a character, or the end
                if text or part.get("tool_calls") or (choice.get("finish_reason") and not reply.arrivals):
                    reply.arrivals.append(now)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise StreamError("malformed event", f"{data[:SHOWN_CHARACTERS]!r}") from error


def reason(text: str) -> str:
    """Returns the message of an error in OpenAI's shape, else the beginning of the text."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return text[:SHOWN_CHARACTERS]
