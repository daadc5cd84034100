"""Parts of requests that a session has read before: clients send their whole history with every turn.

A part is known by its JSON values, so its checks are those of its first time. Outside of sessions nothing is kept.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ModelWrapValidatorHandler, model_validator

from arcforge_serving.server.shared.body import OpenBody
from arcforge_serving.server.shared.ignored import WalkedOnce
from arcforge_serving.server.shared.memories import Memories

T = TypeVar("T", bound=BaseModel)
OBJECT_BYTES = 2048
"""Of a part, besides its JSON."""


class Memory:
    """Parsed parts of one session by class and values.

    Args:
        shared: has the parts, with those of other sessions.
    """

    def __init__(self, shared: Memories | None = None) -> None:
        self._shared = shared or Memories()
        self._number = self._shared.holder()

    def __len__(self) -> int:
        return self._shared.size_of(self._number)

    def close(self) -> None:
        """Forgets all parts."""
        self._shared.drop(self._number)

    def parsed(self, kind: type[T], given: Any, parse: ModelWrapValidatorHandler[T]) -> T:
        """Returns a part; parses it if none of its class with the same values is kept. Errors are not kept.

        Values are the same if they have the same types, and objects the same order of keys: ``1``, ``1.0`` and ``true``
        are three.
        """
        try:
            written = marshal.dumps(given, 2)  # one value, one text: this version neither interns nor refers back
        except ValueError:  # not from JSON, or nested deeper than it writes
            return parse(given)
        key = self._number, kind, blake2b(written, digest_size=32).digest()
        part: T | None = self._shared.get(key)
        if part is None:
            part = parse(given)
            self._shared.put(key, part, len(written) + OBJECT_BYTES)
        return part


_MEMORY: ContextVar[Memory | None] = ContextVar("memory", default=None)


@contextmanager
def remembering(memory: Memory) -> Iterator[None]:
    """Parses the parts of one request with a memory, in this task and the threads that it asks."""
    token = _MEMORY.set(memory)
    try:
        yield
    finally:
        _MEMORY.reset(token)


class Remembered(OpenBody, WalkedOnce):
    """An element of a conversation. Must not be changed: several requests may share it."""

    @model_validator(mode="wrap")
    @classmethod
    def _from_memory(cls, given: Any, parse: ModelWrapValidatorHandler[Self]) -> Self:
        memory = _MEMORY.get()
        return parse(given) if memory is None else memory.parsed(cls, given, parse)
