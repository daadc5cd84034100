"""Replies of a session, for requests that are sent again."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b

from starlette.datastructures import Headers
from starlette.types import Message, Send

from arcforge_core.errors import ConfigError
from arcforge_serving.server.shared.memories import Memories

KEPT = 32
"""Replies of a session; clients repeat their last requests only."""
REPLY_BYTES = 2048
"""Of a reply, besides its body."""
RETRY_COUNT, IDEMPOTENCY_KEY = "x-stainless-retry-count", "idempotency-key"
REPLAYED = (b"x-arcforge-replayed", b"true")


@dataclass(eq=False)
class Reply:
    """The reply to a request, as the application sends it.

    Attributes:
        digest: of the request.
        start: status and headers; empty before they are sent.
        body: sent so far.
        is_whole: whether the reply is complete and may be sent again.
        ended: set when it is complete, or never will be.
    """

    digest: bytes
    start: Message = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, message: Message) -> bool:
        """Takes a message of the application; returns whether it is the last."""
        if message["type"] == "http.response.start":
            self.start = message
            return False
        self.body += message.get("body", b"")
        return not message.get("more_body")

    async def send(self, send: Send) -> None:
        """Sends the reply again."""
        await send({**self.start, "headers": [*self.start["headers"], REPLAYED]})
        await send({"type": "http.response.body", "body": bytes(self.body)})

    def end(self, is_whole: bool) -> None:
        """Lets requests that wait for the reply continue."""
        self.is_whole = is_whole
        self.ended.set()


class Replies:
    """The last replies of a session by their requests.

    Args:
        memories: of the replies of all sessions; those that were not used for longest are forgotten first.
    """

    def __init__(self, memories: Memories) -> None:
        self._memories, self._holder = memories, memories.holder()
        self._begun: dict[bytes, Reply] = {}
        self._ended: deque[bytes] = deque()

    async def find(self, headers: Headers, path: str, body: bytes) -> Reply | None:
        """Returns the reply that a repeated request had, after its end; None for a request that is new.

        A request is repeated if it says so: by the count of retries that OpenAI's and Anthropic's clients send, or by
        the key of an earlier request. Equal requests that do not say so are turns of their own.

        Raises:
            ConfigError: the key was another request's.
        """
        key, digest = _key(headers, path, body)
        kept: Reply | None = self._begun.get(key) or self._memories.get((self._holder, Reply, key))
        if kept is None or not (IDEMPOTENCY_KEY in headers or headers.get(RETRY_COUNT, "0") != "0"):
            return None
        if kept.digest != digest:
            raise ConfigError(IDEMPOTENCY_KEY, headers[IDEMPOTENCY_KEY], "was the key of a request with another body")
        await kept.ended.wait()
        return kept if kept.is_whole else None

    def begin(self, headers: Headers, path: str, body: bytes) -> tuple[bytes, Reply]:
        """Returns a key and a place for the reply to a request; `end` must follow."""
        key, digest = _key(headers, path, body)
        reply = self._begun[key] = Reply(digest)
        return key, reply

    def end(self, key: bytes, reply: Reply, is_whole: bool) -> None:
        """Lets requests that wait for the reply continue, and keeps a whole one."""
        if self._begun.get(key) is reply:
            del self._begun[key]
        if is_whole:
            self.keep(key, reply)
        reply.end(is_whole)

    def keep(self, key: bytes, reply: Reply) -> None:
        """Keeps a whole reply, in place of the one before it and of the session's oldest one."""
        self._memories.remove((self._holder, Reply, key))
        self._memories.put((self._holder, Reply, key), reply, len(reply.body) + REPLY_BYTES)
        self._ended.append(key)
        if len(self._ended) > KEPT and (oldest := self._ended.popleft()) not in self._ended:
            self._memories.remove((self._holder, Reply, oldest))

    def close(self) -> None:
        """Forgets all replies."""
        self._memories.drop(self._holder)


def _key(headers: Headers, path: str, body: bytes) -> tuple[bytes, bytes]:
    digest = blake2b(path.encode() + b"\n" + body, digest_size=16).digest()
    given = headers.get(IDEMPOTENCY_KEY)
    return (digest if given is None else b"key " + given.encode()), digest
