"""Databases of which an episode changes little: the base is shared, changed records are copies of the episode's own."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

Record = dict[str, Any]
Table = Mapping[str, Record]


class ToolRefusal(Exception):
    """A tool that does not do what it was asked; the caller reads the reason."""


class Records:
    """Tables of records by id.

    Args:
        base: shared; never written.
    """

    def __init__(self, base: Mapping[str, Table]) -> None:
        self._base = base
        self._own: dict[str, dict[str, Record]] = {name: {} for name in base}

    def get(self, table: str, key: str, missing: str) -> Record:
        """Returns a record, to be read only.

        Raises:
            ToolRefusal: there is none; the reason is `missing`.
        """
        found = self._own[table].get(key) or self._base[table].get(key)
        if found is None:
            raise ToolRefusal(missing)
        return found

    def edit(self, table: str, key: str, missing: str) -> Record:
        """Returns a record of the episode's own, to be changed.

        Raises:
            ToolRefusal: there is none.
        """
        if key not in self._own[table]:
            self._own[table][key] = copy.deepcopy(self.get(table, key, missing))
        return self._own[table][key]

    def put(self, table: str, key: str, record: Record) -> None:
        """Adds a record."""
        self._own[table][key] = record

    def has(self, table: str, key: str) -> bool:
        """Returns whether there is such a record."""
        return key in self._own[table] or key in self._base[table]

    def all(self, table: str) -> Iterator[tuple[str, Record]]:
        """Yields the records of a table in the order in which they were added, to be read only."""
        own = self._own[table]
        for key, record in self._base[table].items():
            yield key, own.get(key, record)
        yield from ((key, record) for key, record in own.items() if key not in self._base[table])

    def changes(self) -> dict[str, dict[str, Record]]:
        """Returns the records that differ from the base, by table; tables without any are left out."""
        found = {
            name: {key: record for key, record in own.items() if record != self._base[name].get(key)}
            for name, own in self._own.items()
        }
        return {name: records for name, records in found.items() if records}
