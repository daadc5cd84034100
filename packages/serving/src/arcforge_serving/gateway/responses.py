"""Stored replies of ``/v1/responses`` in a session that is written to disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arcforge_serving.gateway.log import SessionFile, write_line
from arcforge_serving.server.shared.memories import Memories
from arcforge_serving.server.shared.response_store import ResponseStore


class WrittenResponses(ResponseStore):
    """Writes each reply before it is stored. A reply's line has the messages after those of the reply it continues.

    Args:
        memories: of the replies of all sessions.

    Attributes:
        file: of the session; None for one in memory alone.
    """

    def __init__(self, memories: Memories) -> None:
        super().__init__(memories, "gateway.replies_mb")
        self.file: SessionFile | None = None

    def put(
        self,
        owner: str,
        messages: list[dict[str, Any]],
        response: dict[str, Any],
        items: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Writes and stores a reply.

        Raises:
            NotKeptError: it cannot be written; it is not stored.
        """
        before = self.get(response.get("previous_response_id") or "", owner)
        shared = 0 if before is None else len(before.messages)
        line = {"owner": owner, "shared": shared, "messages": messages[shared:], "response": response, "items": items}
        write_line(self.file, lambda: {"stored": line})
        super().put(owner, messages, response, items)

    def drop(self, id_: str, owner: str) -> bool:
        """Forgets a reply; returns whether it was stored."""
        dropped = super().drop(id_, owner)
        if dropped:
            write_line(self.file, lambda: {"dropped": [id_, owner]})
        return dropped

    def restore(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Stores the replies of a session's lines.

        Raises:
            KeyError, TypeError, ValueError: a line is malformed.
        """
        said: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            if (given := line.get("stored")) is not None:
                response = given["response"]
                before = said[response["previous_response_id"]][: given["shared"]] if given["shared"] else []
                said[response["id"]] = messages = [*before, *given["messages"]]
                super().put(given["owner"], messages, response, given["items"])
            elif "dropped" in line:
                super().drop(*line["dropped"])
