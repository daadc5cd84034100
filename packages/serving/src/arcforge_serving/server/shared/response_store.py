"""Replies of ``/v1/responses`` that later requests may continue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from arcforge_serving.server.shared.memories import Key, Memories


@dataclass(frozen=True)
class Stored:
    """A reply.

    Attributes:
        owner: the key whose holders may read it.
        messages: the conversation up to its end, as messages of a chat, without the instructions.
        response: the reply.
        items: the input that came with the request, each with an id.
    """

    owner: str
    messages: list[dict[str, Any]]
    response: dict[str, Any]
    items: Sequence[dict[str, Any]] = ()

    @property
    def all_items(self) -> list[dict[str, Any]]:
        """The items of the output, then of the input."""
        return [*self.response.get("output", ()), *self.items]


class ResponseStore:
    """Keeps the most recently used replies in memory.

    Args:
        memories: where, with those of other stores; their bytes are those of JSON.
        option: that bounds them.
    """

    def __init__(self, memories: Memories, option: str = "responses_mb") -> None:
        self.memories, self._option = memories, option
        self._holder = memories.holder()
        self._items: dict[str, str] = {}
        """Ids of replies by those of the items of their output and input."""

    def __len__(self) -> int:
        return self.memories.size_of(self._holder)

    @property
    def bound(self) -> str:
        """The bound in words."""
        return f"this server keeps the last {self.memories.most_bytes // 2**20} MiB of them ({self._option})"

    def put(
        self,
        owner: str,
        messages: list[dict[str, Any]],
        response: dict[str, Any],
        items: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Stores a reply under its id, unless it exceeds the bound by itself."""
        stored = Stored(owner, messages, response, items)
        self._items.update((item["id"], response["id"]) for item in stored.all_items)
        size = len(json.dumps([messages, response, items]))
        if size > self.memories.most_bytes:
            self._forget(stored)
        else:
            self.memories.put(self._key(response["id"]), stored, size, partial(self._forget, stored))

    def close(self) -> None:
        """Forgets all replies."""
        self.memories.drop(self._holder)
        self._items.clear()

    def _key(self, id_: str) -> Key:
        return self._holder, Stored, id_

    def _forget(self, stored: Stored) -> None:
        for item in stored.all_items:
            self._items.pop(item["id"], None)

    def item(self, id_: str, owner: str) -> dict[str, Any] | None:
        """Returns an item of a reply's output or input; None if it is not stored or has another owner."""
        stored = self.get(self._items.get(id_, ""), owner)
        return None if stored is None else next(item for item in stored.all_items if item["id"] == id_)

    def get(self, id_: str, owner: str) -> Stored | None:
        """Returns a reply; None if it is not stored or has another owner."""
        found: Stored | None = self.memories.get(self._key(id_))
        return None if found is None or found.owner != owner else found

    def drop(self, id_: str, owner: str) -> bool:
        """Forgets a reply; returns whether it was stored."""
        stored = self.get(id_, owner)
        if stored is None:
            return False
        self.memories.remove(self._key(id_))
        self._forget(stored)
        return True
