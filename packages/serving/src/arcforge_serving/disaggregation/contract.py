"""What goes from a prefill role to a decode role, and through what."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class TransferError(Exception):
    """Pages did not come, or not as they were: nothing of them may be used."""


@dataclass(frozen=True)
class Asked:
    """A prompt whose pages are wanted.

    Attributes:
        tokens: ids of the whole prompt.
        first: number of the first page that is wanted; those before it are there.
        version: of the weights that must have computed them.
        page_bytes: of a page's record: `page_size` tokens of all entries of all layers, see `cache_spec()`.
    """

    tokens: tuple[int, ...]
    first: int
    version: int
    page_bytes: int


@dataclass(frozen=True)
class Pages:
    """Records of pages in order, uint8 on the host, from the first that was asked for; perhaps not all of them."""

    first: int
    version: int
    records: list[Tensor]


class Connector(Protocol):
    """Where a decode role gets pages from; called from several threads at once."""

    def fetch(self, asked: Asked) -> Pages:
        """Waits for a prompt's pages.

        Raises:
            TransferError: see there. It may be tried again.
        """

    def close(self) -> None:
        """Lets go of what it holds."""


class Prefill(Protocol):
    """Computes prompts, for a connector."""

    def pages(self, asked: Asked) -> Pages:
        """Returns a prompt's pages.

        Raises:
            TransferError: it has other weights or pages of another size, or cannot compute.
        """


def page_checksum(number: int, record: bytes | memoryview) -> int:
    """Returns the CRC-32 of a page's record at its place, so that neither its bytes nor its place can change."""
    return zlib.crc32(record, zlib.crc32(number.to_bytes(8, "big")))


def whole_pages(tokens: Sequence[int], page_size: int) -> int:
    """Returns how many pages of a prompt can be shared: its last token is always computed by who decodes."""
    return (len(tokens) - 1) // page_size
