"""Replies of a session, for requests that are sent again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b

from starlette.datastructures import Headers
from starlette.types import Message, Send

from arcforge_core.errors import ConfigError

KEPT = 32
"""Replies of a session; clients repeat their last requests only."""
RETRY_COUNT, IDEMPOTENCY_KEY = "x-stainless-retry-count", "idempotency-key"
REPLAYED = (b"x-arcforge-replayed", b"true")


@dataclass
class Reply:
    """The messages of a reply.

    Attributes:
        digest: of the request.
        parts: as the application sent them.
        done: True when the reply is whole, False when there is none.
    """

    digest: bytes
    parts: list[Message] = field(default_factory=list)
    done: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def send(self, send: Send) -> None:
        """Sends the reply again."""
        start, *others = self.parts
        await send({**start, "headers": [*start["headers"], REPLAYED]})
        for part in others:
            await send(part)

    def end(self, is_whole: bool) -> None:
        """Lets requests that wait for the reply continue."""
        if not self.done.done():
            self.done.set_result(is_whole)


class Replies:
    """The last replies by their requests."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Reply] = OrderedDict()

    async def find(self, headers: Headers, path: str, body: bytes) -> Reply | None:
        """Returns the reply that a repeated request had, after its end; None for a request that is new.

        A request is repeated if it says so: by the count of retries that OpenAI's and Anthropic's clients send, or by
        the key of an earlier request. Equal requests that do not say so are turns of their own.

        Raises:
            ConfigError: the key was another request's.
        """
        key, digest = _key(headers, path, body)
        kept = self._kept.get(key)
        if kept is None or not (IDEMPOTENCY_KEY in headers or headers.get(RETRY_COUNT, "0") != "0"):
            return None
        if kept.digest != digest:
            raise ConfigError(IDEMPOTENCY_KEY, headers[IDEMPOTENCY_KEY], "was the key of a request with another body")
        return kept if await asyncio.shield(kept.done) else None

    def begin(self, headers: Headers, path: str, body: bytes) -> Reply:
        """Returns a place for the reply to a request; `Reply.end` must follow."""
        key, digest = _key(headers, path, body)
        self._kept[key] = reply = Reply(digest)
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return reply


def _key(headers: Headers, path: str, body: bytes) -> tuple[bytes, bytes]:
    digest = blake2b(path.encode() + b"\n" + body, digest_size=16).digest()
    given = headers.get(IDEMPOTENCY_KEY)
    return (digest if given is None else b"key " + given.encode()), digest
