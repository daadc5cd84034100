"""Parts of requests that a session has read before: clients send their whole history with every turn.

A part is known by its JSON values, so its checks are those of its first time. Outside of sessions nothing is kept.
"""

from __future__ import annotations

import itertools
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
OBJECT_BYTES = 2048
"""Of a part, besides its JSON."""
Key = tuple[int, type, bytes]


class Memories:
    """Parsed parts of all sessions; those that were not used for longest are forgotten first. Thread-safe.

    Args:
        most_bytes: that the parts may have together; 0 keeps none.

    Attributes:
        bytes: that they have.
        forgotten: parts that made room for others.
    """

    def __init__(self, most_bytes: int = 256 * 2**20) -> None:
        self.most_bytes, self.bytes, self.forgotten = most_bytes, 0, 0
        self._kept: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._owned: dict[int, set[Key]] = {}
        self._lock = threading.Lock()

    def get(self, key: Key) -> Any:
        """Returns a part that was used now, or None."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Key, part: Any, size: int) -> None:
        """Keeps a part, unless it is larger than all may be."""
        with self._lock:
            if key not in self._kept and size <= self.most_bytes:
                self._kept[key] = part, size
                self._owned.setdefault(key[0], set()).add(key)
                self.bytes += size
            while self.bytes > self.most_bytes:
                oldest, (_, freed) = self._kept.popitem(last=False)
                self._owned[oldest[0]].discard(oldest)
                self.bytes -= freed
                self.forgotten += 1

    def size_of(self, owner: int) -> int:
        """Returns the number of parts of a memory."""
        return len(self._owned.get(owner, ()))

    def drop(self, owner: int) -> None:
        """Forgets the parts of a memory."""
        with self._lock:
            for key in self._owned.pop(owner, ()):
                self.bytes -= self._kept.pop(key)[1]


class Memory:
    """Parsed parts of one session by class and values.

    Args:
        shared: has the parts, with those of other sessions.
    """

    _numbers = itertools.count()

    def __init__(self, shared: Memories | None = None) -> None:
        self._shared, self._number = shared or Memories(), next(self._numbers)

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
