"""Parts of requests that a session has read before: clients send their whole history with every turn.

A part is known by its JSON values, so its checks are those of its first time. Outside of sessions nothing is kept.
"""

from __future__ import annotations

import marshal
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ModelWrapValidatorHandler, model_validator

from arcforge_serving.server.shared.body import OpenBody
from arcforge_serving.server.shared.ignored import WalkedOnce

T = TypeVar("T", bound=BaseModel)
MOST_BYTES = 32 * 2**20
"""Of a session's parts: four of the largest bodies that a server accepts by default."""
OBJECT_BYTES = 2048
"""Of a part, besides its JSON."""


class Memory:
    """Parsed parts by class and values; those that were not used for longest are forgotten first. Thread-safe.

    Args:
        most_bytes: that the parts may have together.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._kept: OrderedDict[tuple[type, bytes], tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def parsed(self, kind: type[T], given: Any, parse: ModelWrapValidatorHandler[T]) -> T:
        """Returns a part; parses it if none of its class with the same values was parsed. Errors are not kept.

        Values are the same if they have the same types, and objects the same order of keys: ``1``, ``1.0`` and ``true``
        are three.
        """
        try:
            written = marshal.dumps(given, 2)  # one value, one text: this version neither interns nor refers back
        except ValueError:  # not from JSON, or nested deeper than it writes
            return parse(given)
        key = kind, blake2b(written, digest_size=32).digest()
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                part: T = found[0]
                return part
        part, size = parse(given), len(written) + OBJECT_BYTES
        with self._lock:
            if key not in self._kept and size <= self.most_bytes:
                self._kept[key] = part, size
                self.bytes += size
            while self.bytes > self.most_bytes:
                self.bytes -= self._kept.popitem(last=False)[1][1]
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
