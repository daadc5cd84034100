"""Parts that several holders keep within one number of bytes."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

Key = tuple[int, type, Hashable]
"""Number of the holder, class of the part, and what names it there."""


@dataclass
class KeptPart:
    """Something that is kept.

    Attributes:
        value: it.
        size: bytes.
        forget: called when it made room for others.
    """

    value: Any
    size: int
    forget: Callable[[], None] | None = None


class Memories:
    """Parts of all holders; those that were not used for longest are forgotten first. Thread-safe.

    Args:
        most_bytes: that the parts may have together; 0 keeps none.

    Attributes:
        bytes: that they have.
        forgotten: parts that made room for others.
    """

    def __init__(self, most_bytes: int = 256 * 2**20) -> None:
        self.most_bytes, self.bytes, self.forgotten = most_bytes, 0, 0
        self._kept: OrderedDict[Key, KeptPart] = OrderedDict()
        self._owned: dict[int, set[Key]] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def holder(self) -> int:
        """Returns the number of a further holder, which keeps parts until `drop`."""
        number = next(self._numbers)
        self._owned[number] = set()
        return number

    def get(self, key: Key) -> Any:
        """Returns a part that was used now, or None."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found.value

    def put(self, key: Key, part: Any, size: int, forget: Callable[[], None] | None = None) -> None:
        """Keeps a part, unless it is larger than all may be, or its holder has ended; see `KeptPart`."""
        gone: list[KeptPart] = []
        with self._lock:
            if key not in self._kept and size <= self.most_bytes and key[0] in self._owned:
                self._kept[key] = KeptPart(part, size, forget)
                self._owned[key[0]].add(key)
                self.bytes += size
            while self.bytes > self.most_bytes:
                gone.append(self._remove(next(iter(self._kept))))
                self.forgotten += 1
        for each in gone:
            if each.forget is not None:
                each.forget()

    def remove(self, key: Key) -> None:
        """Forgets a part, if it is kept."""
        with self._lock:
            if key in self._kept:
                self._remove(key)

    def _remove(self, key: Key) -> KeptPart:
        part = self._kept.pop(key)
        self._owned[key[0]].discard(key)
        self.bytes -= part.size
        return part

    def size_of(self, owner: int) -> int:
        """Returns the number of parts of a holder."""
        return len(self._owned.get(owner, ()))

    def drop(self, owner: int) -> None:
        """Forgets the parts of a holder, which has ended."""
        with self._lock:
            for key in self._owned.pop(owner, ()):
                self.bytes -= self._kept.pop(key).size
