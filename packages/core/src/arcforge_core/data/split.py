"""Which documents are trained on, which are held out and which are left out; decided by hashes alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arcforge_core.errors import DataError

if TYPE_CHECKING:  # it imports torch, which processes that only split tasks do without
    from arcforge_core.contracts.data import Document, DocumentSource

_RANGE = 1 << 64


def key_hash(key: str) -> int:
    """Returns a stable number in [0, 2**64) for a document's key."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:8], "big")


TASKS_HELDOUT = 0.2
"""Share of tasks, of environments and of made conversations, that is held out."""


def is_heldout_task(key: str) -> bool:
    """Returns whether the task that a key stands for is held out, decided by the key alone."""
    return key_hash(key) < TASKS_HELDOUT * _RANGE


@dataclass(frozen=True)
class Split:
    """The rule and what it found.

    Attributes:
        limit: documents whose key hashes below it are held out.
        num_documents: documents kept, of both sides.
        num_bytes: their UTF-8 bytes.
        duplicates: exact copies of an earlier text, left out so that none straddles the split.
        empty: documents without a character, left out.
    """

    limit: int
    num_documents: int
    num_bytes: int
    duplicates: int
    empty: int

    def is_heldout(self, document: Document) -> bool:
        """Tells on which side a document is; one that repeats or shows text of another is on that one's side."""
        return key_hash(document.part_of or document.text_of or document.key) < self.limit

    def kept(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yields the documents of both sides: unique ones, without those that repeat held-out text."""
        return (d for d in unique(documents) if d.part_of is None or not self.is_heldout(d))


def unique(documents: Iterable[Document]) -> Iterator[Document]:
    """Yields the documents that are neither empty nor exact copies of an earlier one."""
    seen: set[bytes] = set()
    for document in documents:
        text_hash = hashlib.blake2b(document.text.encode(), digest_size=16).digest()
        if document.text and text_hash not in seen:
            seen.add(text_hash)
            yield document


def scan(documents: Iterable[Document], heldout: float) -> Split:
    """Reads all documents once and fixes the split.

    The fraction is of documents. A corpus so small that hashing leaves a side empty gives that side the
    document whose hash is nearest, so that two documents are enough to train and evaluate.

    Raises:
        DataError: the corpus is empty, or its only document cannot be on both sides.
    """
    total = empty = num_documents = num_bytes = 0

    def counted() -> Iterator[Document]:
        nonlocal total, empty
        for document in documents:
            total += 1
            empty += not document.text
            yield document

    limit = int(heldout * _RANGE)
    held = largest = 0
    smallest = _RANGE
    parts: list[tuple[int, int]] = []  # hash of what it is a part of, bytes
    for document in unique(counted()):
        size = len(document.text.encode())
        if document.part_of is not None:
            parts.append((key_hash(document.part_of), size))
            continue
        num_documents += 1
        num_bytes += size
        hashed = key_hash(document.text_of or document.key)
        held += hashed < limit
        smallest, largest = min(smallest, hashed), max(largest, hashed)
    if not num_documents:
        raise DataError(f"data: the corpus is empty: {total:,} documents were read and none has any text")
    if limit:
        if num_documents == 1:
            raise DataError(
                f"data.heldout={heldout:g}: the corpus is a single document, which cannot be on both sides; set "
                "data.heldout=0, or cut a long text into documents (data.document_bytes=32768 with data=files)"
            )
        if held == 0:
            limit = smallest + 1
        elif held == num_documents:
            limit = largest
    duplicates = total - num_documents - len(parts) - empty
    trained = [size for hashed, size in parts if hashed >= limit]
    return Split(limit, num_documents + len(trained), num_bytes + sum(trained), duplicates, empty)


def heldout_documents(source: DocumentSource, heldout: float) -> list[Document]:
    """Returns the documents that a corpus of `source` holds out, without building its shards.

    Raises:
        DataError: nothing is held out, or the corpus is empty.
    """
    if not heldout:
        raise DataError("data.heldout=0: no documents are held out, so there is nothing to evaluate on")
    split = scan(source.documents(), heldout)
    return [document for document in split.kept(source.documents()) if split.is_heldout(document)]
