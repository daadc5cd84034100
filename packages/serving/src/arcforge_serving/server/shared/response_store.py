"""Replies of ``/v1/responses`` that later requests may continue."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stored:
    """A reply.

    Attributes:
        owner: the key whose holders may read it.
        messages: the conversation up to its end, as messages of a chat, without the instructions.
        response: the reply.
        size: bytes of all as JSON.
        items: the input that came with the request, each with an id.
    """

    owner: str
    messages: list[dict[str, Any]]
    response: dict[str, Any]
    size: int
    items: Sequence[dict[str, Any]] = ()

    @property
    def all_items(self) -> list[dict[str, Any]]:
        """The items of the output, then of the input."""
        return [*self.response.get("output", ()), *self.items]


class ResponseStore:
    """Keeps the most recently used replies in memory.

    Args:
        most: bytes of JSON; beyond it the least recently used replies are dropped. 0 stores none.
    """

    def __init__(self, most: int = 64 * 2**20) -> None:
        self.most, self.size = most, 0
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._items: dict[str, str] = {}
        """Ids of replies by those of the items of their output and input."""

    def __len__(self) -> int:
        return len(self._kept)

    def put(
        self,
        owner: str,
        messages: list[dict[str, Any]],
        response: dict[str, Any],
        items: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Stores a reply under its id, unless it exceeds `most` by itself."""
        size = len(json.dumps([messages, response, items]))
        if size > self.most:
            return
        stored = Stored(owner, messages, response, size, items)
        self._kept[response["id"]] = stored
        self._items.update((item["id"], response["id"]) for item in stored.all_items)
        self.size += size
        while self.size > self.most:
            self._forget(next(iter(self._kept)))

    def _forget(self, id_: str) -> None:
        stored = self._kept.pop(id_)
        self.size -= stored.size
        for item in stored.all_items:
            self._items.pop(item["id"], None)

    def item(self, id_: str, owner: str) -> dict[str, Any] | None:
        """Returns an item of a reply's output or input; None if it is not stored or has another owner."""
        stored = self.get(self._items.get(id_, ""), owner)
        return None if stored is None else next(item for item in stored.all_items if item["id"] == id_)

    def get(self, id_: str, owner: str) -> Stored | None:
        """Returns a reply; None if it is not stored or has another owner."""
        found = self._kept.get(id_)
        if found is None or found.owner != owner:
            return None
        self._kept.move_to_end(id_)
        return found

    def drop(self, id_: str, owner: str) -> bool:
        """Forgets a reply; returns whether it was stored."""
        if self.get(id_, owner) is None:
            return False
        self._forget(id_)
        return True
