"""Replies of ``/v1/responses`` that later requests may go on from."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stored:
    """A reply.

    Attributes:
        owner: who may see it: holders of the same key.
        messages: the conversation up to its end, as messages of a chat, without the instructions.
        response: the reply.
        size: bytes of all that as JSON.
    """

    owner: str
    messages: list[dict[str, Any]]
    response: dict[str, Any]
    size: int


class ResponseStore:
    """Keeps the replies that were used last, in memory.

    Args:
        most: bytes of JSON; what is above goes, the longest unused first. 0 keeps nothing.
    """

    def __init__(self, most: int = 64 * 2**20) -> None:
        self.most, self.size = most, 0
        self._kept: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, owner: str, messages: list[dict[str, Any]], response: dict[str, Any]) -> None:
        """Keeps a reply under its id, unless it is larger than everything may be."""
        size = len(json.dumps([messages, response]))
        if size > self.most:
            return
        self._kept[response["id"]] = Stored(owner, messages, response, size)
        self.size += size
        while self.size > self.most:
            self.size -= self._kept.popitem(last=False)[1].size

    def get(self, id_: str, owner: str) -> Stored | None:
        """Returns a reply; None when it is not there, or somebody else's."""
        found = self._kept.get(id_)
        if found is None or found.owner != owner:
            return None
        self._kept.move_to_end(id_)
        return found

    def drop(self, id_: str, owner: str) -> bool:
        """Forgets a reply; returns whether it was there."""
        if self.get(id_, owner) is None:
            return False
        self.size -= self._kept.pop(id_).size
        return True
