"""The second tier: records of evicted pages in a memory-mapped file."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from arcforge_core.errors import ConfigError
from arcforge_serving.engine.kvcache.store import checksum


class FileTier:
    """A file of records, each with a checksum in memory; it is deleted when it is closed.

    Args:
        count: how many records.
        record_bytes: bytes of one.
        folder: where the file is; None is the system's for temporary files.

    Attributes:
        path: of the file.
        count: how many records.

    Raises:
        ConfigError: the file cannot be made.
    """

    def __init__(self, count: int, record_bytes: int, folder: str | None = None) -> None:
        try:
            self._file = tempfile.NamedTemporaryFile(prefix="arcforge-cache-", dir=folder)  # noqa: SIM115
            self._file.truncate(count * record_bytes)
        except OSError as error:
            raise ConfigError("engine.tier_dir", folder, f"cannot hold the cache's second tier: {error}") from error
        self.path = Path(self._file.name)
        flat = torch.from_file(self._file.name, shared=True, size=count * record_bytes, dtype=torch.uint8)
        self._records = flat.view(count, record_bytes)
        self.count = count
        self._free = list(range(count))
        self._tickets = itertools.count()
        self._records_of: dict[int, int] = {}
        self._checksums: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Records that hold nothing."""
        return len(self._free)

    def take(self) -> int:
        """Returns a ticket for a record that is free no longer. A record's next ticket is another one."""
        ticket = next(self._tickets)
        self._records_of[ticket] = self._free.pop()
        return ticket

    def give(self, ticket: int) -> None:
        """Takes a record back."""
        self._free.append(self._records_of.pop(ticket))
        self._checksums.pop(ticket, None)

    def write(self, ticket: int, values: Tensor) -> None:
        """Fills a record, unless it was given back meanwhile; until then it reads as None."""
        record = self._records_of.get(ticket)
        if record is not None:
            self._records[record] = values
            self._checksums[ticket] = checksum(values)

    def read(self, ticket: int) -> Tensor | None:
        """Returns a copy of a record, or None: it was not written yet, or is not what was written."""
        values = self._records[self._records_of[ticket]].clone()
        return values if self._checksums.get(ticket) == checksum(values) else None

    def close(self) -> None:
        """Deletes the file."""
        self._file.close()
