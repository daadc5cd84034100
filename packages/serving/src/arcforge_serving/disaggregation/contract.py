"""Messages between a prefill role and a decode role."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


class TransferError(Exception):
    """Pages did not arrive, or not intact: none of them may be used."""


@dataclass(frozen=True)
class PageRequest:
    """A prompt whose pages are requested.

    Attributes:
        tokens: ids of the whole prompt.
        first: number of the first page requested; the decode role has those before it.
        version: of the weights that must have computed them.
        page_bytes: of a page's record: `page_size` tokens of all entries of all layers, see `cache_spec()`.
        salt: prompts of different salts share no pages.
    """

    tokens: tuple[int, ...]
    first: int
    version: int
    page_bytes: int
    salt: str = ""


@dataclass(frozen=True)
class PageRecords:
    """Records of consecutive pages, uint8 on the host, from number `first` on; possibly fewer than requested."""

    first: int
    version: int
    records: list[Tensor]


def page_checksum(number: int, record: bytes | memoryview) -> int:
    """Returns the CRC-32 of a page's number and record, which detects changes of either."""
    return zlib.crc32(record, zlib.crc32(number.to_bytes(8, "big")))


def whole_pages(tokens: Sequence[int], page_size: int) -> int:
    """Returns how many pages of a prompt can be shared: the decode role always computes the last token."""
    return (len(tokens) - 1) // page_size
