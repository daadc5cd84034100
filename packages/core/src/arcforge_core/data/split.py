"""The split of documents into trained, held-out and dropped ones.

Hashes of keys decide the side of a document. Near copies are on one side, so that held-out text is not trained on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from arcforge_core.console.progress import say
from arcforge_core.contracts.data import Document, DocumentSource
from arcforge_core.data.near import BUDGET, WORDS, Phrases, words
from arcforge_core.errors import DataError

RANGE = 1 << 64
"""Hashes of keys are below it."""

PHRASE = 13
"""Words of a compared phrase, as in the contamination checks of GPT-3 (Brown et al., 2020)."""
SHARE = 0.05
"""Near copies share this many of their phrases with others."""
LARGEST = 0.05
"""Share of the corpus's phrases above which a group of near copies is always trained on."""
RULE: dict[str, Any] = {
    "near_copies": {"phrase": PHRASE, "share": SHARE, "largest": LARGEST, "budget": BUDGET, "words": WORDS.pattern}
}
"""The rule of the split; part of the cache key of a corpus."""


def key_hash(key: str) -> int:
    """Returns a stable number in [0, 2**64) for a document's key."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:8], "big")


TASKS_HELDOUT = 0.2
"""Held-out share of tasks, of environments and of generated conversations."""


def is_heldout_task(key: str) -> bool:
    """Returns whether the task with this key is held out; depends on the key alone."""
    return key_hash(key) < TASKS_HELDOUT * RANGE


def places(phrases: Phrases, largest: float = LARGEST) -> dict[int, int]:
    """Returns the places of documents in groups of near copies, by the hash of their key.

    A place is a number in [0, 2**64]; documents with places below a limit are held out. The place of a group is the
    hash of its smallest key, the place of a group with more than `largest` of all phrases is the last. Documents
    without near copies are absent: their place is the hash of their key.
    """
    group_of = phrases.groups(SHARE)
    sizes: Counter[str] = Counter()
    for key, first in group_of.items():
        sizes[first] += len(phrases.kept[key])
    most = largest * sum(map(len, phrases.kept.values()))
    return {key_hash(key): RANGE if sizes[first] > most else key_hash(first) for key, first in group_of.items()}


@dataclass(frozen=True)
class Split:
    """The split rule and the counts of its scan.

    Attributes:
        limit: documents whose place is below it are held out.
        num_documents: documents kept on both sides.
        num_bytes: their UTF-8 bytes.
        duplicates: exact copies of an earlier text, dropped so that no text is on both sides.
        empty: documents without a character, dropped.
        moved: places of documents in groups of near copies, by the hash of their key; others have their hash.
    """

    limit: int
    num_documents: int
    num_bytes: int
    duplicates: int
    empty: int
    moved: Mapping[int, int] = field(default_factory=dict)

    def is_heldout(self, document: Document) -> bool:
        """Whether a document is held out; one that repeats or quotes held-out text is held out as well."""
        return any(self.moved.get(hashed, hashed) < self.limit for hashed in _hashes(document))

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


def scan(
    documents: Iterable[Document], heldout: float, compared: Callable[[Document], str] = attrgetter("text")
) -> Split:
    """Reads all documents once and fixes the split.

    The fraction counts documents. If a corpus is so small that hashing leaves a side empty, that side gets the
    document with the nearest place, so that two documents suffice to train and evaluate.

    Args:
        documents: the corpus.
        heldout: share to hold out; with 0 near copies are not looked for.
        compared: the text by which a document is compared with others. A document that repeats or quotes others is on
            their side and is not compared.

    Raises:
        DataError: the corpus is empty, or its only document cannot be on both sides.
    """
    total = empty = num_bytes = 0
    deciding: list[tuple[int, ...]] = []  # of each document that is part of none: hashes of the keys that decide
    parts: list[tuple[int, int]] = []  # hash of the document it is part of, bytes
    phrases = Phrases(PHRASE)

    def counted() -> Iterator[Document]:
        nonlocal total, empty
        for document in documents:
            total += 1
            empty += not document.text
            yield document

    for document in unique(counted()):
        size = len(document.text.encode())
        if document.part_of is not None:
            parts.append((key_hash(document.part_of), size))
            continue
        num_bytes += size
        deciding.append(_hashes(document))
        if heldout and not document.text_of:
            phrases.add(document.key, words(compared(document)))
    num_documents = len(deciding)
    if not num_documents:
        raise DataError(f"data: the corpus is empty: {total:,} documents were read and none has any text")
    limit, moved = int(heldout * RANGE), places(phrases)
    if limit:
        if num_documents == 1:
            raise DataError(
                f"data.heldout={heldout:g}: the corpus is a single document, which cannot be on both sides; set "
                "data.heldout=0, or cut a long text into documents (data.document_bytes=32768 with data=files)"
            )
        limit, moved = _with_both_sides(limit, moved, phrases, deciding)
    trained = [size for hashed, size in parts if moved.get(hashed, hashed) >= limit]
    return Split(
        limit,
        num_documents + len(trained),
        num_bytes + sum(trained),
        duplicates=total - num_documents - len(parts) - empty,
        empty=empty,
        moved=moved,
    )


def _with_both_sides(
    limit: int, moved: dict[int, int], phrases: Phrases, deciding: list[tuple[int, ...]]
) -> tuple[int, dict[int, int]]:
    """Returns limit and places for which at least one document is on each side, close to the given ones."""
    found = [min(moved.get(hashed, hashed) for hashed in hashes) for hashes in deciding]
    if min(found) == RANGE:  # large groups only
        moved = places(phrases, largest=1.0)
        found = [min(moved.get(hashed, hashed) for hashed in hashes) for hashes in deciding]
    if min(found) == max(found):
        say(
            f"data.heldout: all {len(found):,} documents are near copies of one another (each shares {SHARE:.0%} of "
            f"its {PHRASE}-word phrases with others), so held-out text resembles training text"
        )
        moved, found = {}, [min(hashes) for hashes in deciding]
    return min(max(limit, min(found) + 1), max(found)), moved


def _hashes(document: Document) -> tuple[int, ...]:
    """Returns the hashes of the keys that decide the side of a document."""
    keys = (document.part_of,) if document.part_of is not None else document.text_of or (document.key,)
    return tuple(key_hash(key) for key in keys)


def scan_source(
    source: DocumentSource,
    heldout: float,
    reading: Callable[[Iterable[Document]], Iterable[Document]] = iter,
) -> Split:
    """Returns the split of a source's documents, see `scan`; `reading` passes the documents on, to show progress."""
    return scan(reading(source.documents()), heldout, getattr(source, "compared", attrgetter("text")))


def in_order_of_the_split(documents: Iterable[Document], prefix: str = "") -> list[Document]:
    """Returns documents by their places, so that held-out ones come first and near copies are adjacent.

    Args:
        documents: documents that quote no others.
        prefix: precedes their keys in the corpus that is split.
    """
    listed = list(documents)
    phrases = Phrases(PHRASE)
    for document in listed:
        phrases.add(prefix + document.key, words(document.text))
    moved = places(phrases)
    hashed = {document.key: key_hash(prefix + document.key) for document in listed}
    return sorted(listed, key=lambda d: (moved.get(hashed[d.key], hashed[d.key]), hashed[d.key]))


def heldout_documents(source: DocumentSource, heldout: float) -> list[Document]:
    """Returns the documents that a corpus of `source` holds out, without building its shards.

    Raises:
        DataError: nothing is held out, or the corpus is empty.
    """
    if not heldout:
        raise DataError("data.heldout=0: no documents are held out, so there is nothing to evaluate on")
    split = scan_source(source, heldout)
    return [document for document in split.kept(source.documents()) if split.is_heldout(document)]
