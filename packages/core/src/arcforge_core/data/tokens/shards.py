"""Memory-mapped shards of tokenised documents.

One file: a header of 64 bytes (with its own hash), the tokens (uint16 or uint32), then per document the
offset of its end (uint64, D+1 numbers that start at 0), its UTF-8 bytes (uint64) and its leading tokens that are
context only (uint64). Each document is stored as it is trained on: begin token, text, end token.
Version 3 adds one bit for each token: whether it is a target (8 tokens per byte, the first in the highest bit).

Shapes: D documents, T tokens.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from arcforge_core.errors import DataError

MAGIC = b"ARCSHARD"
VERSION = 2
MASKED_VERSION = 3
TOKENS_PER_SHARD = 64_000_000
_FIELDS = struct.Struct("<8sIIQQ")  # magic, version, bytes per token, documents, tokens
HEADER_BYTES = _FIELDS.size + hashlib.sha256().digest_size


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Returns the smallest dtype that fits every id."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def _header(dtype: np.dtype[np.generic], documents: int, tokens: int, masked: bool) -> bytes:
    version = MASKED_VERSION if masked else VERSION
    fields = _FIELDS.pack(MAGIC, version, dtype.itemsize, documents, tokens)
    return fields + hashlib.sha256(fields).digest()


class ShardWriter:
    """Writes documents into ``{stem}-00000.shard``, ``{stem}-00001.shard``, ...; a context manager.

    Attributes:
        files: the shards finished so far.
    """

    def __init__(self, stem: Path, vocab_size: int, tokens_per_shard: int = TOKENS_PER_SHARD) -> None:
        self._stem = stem
        self._dtype = np.dtype(token_dtype(vocab_size))
        self._limit = tokens_per_shard
        self._file: BinaryIO | None = None
        self._ends: list[int] = [0]
        self._bytes: list[int] = []
        self._unlearnt: list[int] = []
        self._trained: list[NDArray[np.bool_]] = []
        self.files: list[Path] = []

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._finish()

    def add(self, ids: Sequence[int], num_bytes: int, unlearnt: int = 0, trained: Sequence[bool] | None = None) -> None:
        """Appends one document; a shard that has reached its limit is finished first.

        Args:
            ids: its tokens.
            num_bytes: UTF-8 bytes of the trained text.
            unlearnt: leading tokens that are not trained, including the begin token; 0 if all text is trained.
            trained: whether each token is a target; given for all documents of a writer, or for none.

        Raises:
            ValueError: a mask of another length, or for some documents only.
        """
        if trained is not None and len(trained) != len(ids):
            raise ValueError(f"trained has {len(trained)} entries for {len(ids)} tokens")
        if self._bytes and bool(self._trained) != (trained is not None):
            raise ValueError("trained must be given for all documents of a shard or for none")
        if self._file is not None and self._ends[-1] + len(ids) > self._limit:
            self._finish()
        if self._file is None:
            path = Path(f"{self._stem}-{len(self.files):05d}.shard")
            self._file = path.open("wb")
            self._file.write(bytes(HEADER_BYTES))
            self.files.append(path)
        self._file.write(np.asarray(ids, dtype=self._dtype).tobytes())
        self._ends.append(self._ends[-1] + len(ids))
        self._bytes.append(num_bytes)
        self._unlearnt.append(unlearnt)
        if trained is not None:
            self._trained.append(np.asarray(trained, dtype=np.bool_))

    def _finish(self) -> None:
        if self._file is None:
            return
        with self._file as file:
            file.write(np.asarray(self._ends, dtype=np.uint64).tobytes())
            file.write(np.asarray(self._bytes, dtype=np.uint64).tobytes())
            file.write(np.asarray(self._unlearnt, dtype=np.uint64).tobytes())
            if self._trained:
                file.write(np.packbits(np.concatenate(self._trained)).tobytes())
            file.seek(0)  # the header comes last: a truncated file never has a valid one
            file.write(_header(self._dtype, len(self._bytes), self._ends[-1], bool(self._trained)))
            file.flush()
            os.fsync(file.fileno())
        self._file, self._ends, self._bytes, self._unlearnt, self._trained = None, [0], [], [], []


@dataclass(frozen=True)
class Shard:
    """One opened file; its arrays are memory maps.

    Attributes:
        tokens_T: the documents, one after another.
        ends_D: int64 [D+1], start of each document and end of the last one.
        bytes_D: int64 [D], UTF-8 bytes of the trained part of each document's text.
        unlearnt_D: int64 [D], leading tokens of each document that are not trained.
        mask: uint8, whether each token is a target, 8 tokens per byte; None without masks.
    """

    tokens_T: NDArray[np.uint16] | NDArray[np.uint32]
    ends_D: NDArray[np.int64]
    bytes_D: NDArray[np.int64]
    unlearnt_D: NDArray[np.int64]
    mask: NDArray[np.uint8] | None = None

    @staticmethod
    def open(path: Path, dtype: type[np.uint16] | type[np.uint32]) -> Shard:
        """Maps a shard after checking its header and its size.

        Raises:
            DataError: the file is missing, truncated, damaged or of another token type.
        """
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                header = file.read(HEADER_BYTES)
        except OSError as error:
            raise DataError(f"shard {path}: cannot be opened: {error.strerror}") from error
        if len(header) < HEADER_BYTES:
            raise DataError(f"shard {path}: {size} bytes are too few for a header")
        _, version, item, documents, tokens = _FIELDS.unpack_from(header)
        masked = version == MASKED_VERSION
        if header != _header(np.dtype(dtype), documents, tokens, masked):
            raise DataError(f"shard {path}: damaged header (or {item} bytes per token, version {version})")
        mask_bytes = -(-tokens // 8) if masked else 0
        sizes = (HEADER_BYTES, tokens * item, (documents + 1) * 8, documents * 8, documents * 8, mask_bytes)
        starts = np.cumsum(sizes).tolist()
        if size != starts[5]:
            raise DataError(f"shard {path}: has {size} bytes, but its header requires {starts[5]}")
        content = _mapped(path, size)
        parts = [content[start:stop] for start, stop in pairwise(starts)]
        tokens_T = parts[0].view(np.uint16) if dtype is np.uint16 else parts[0].view(np.uint32)
        ends_D, bytes_D, unlearnt_D = (part.view(np.int64) for part in parts[1:4])
        return Shard(tokens_T, ends_D, bytes_D, unlearnt_D, parts[4] if masked else None)


def _mapped(path: Path, size: int) -> NDArray[np.uint8]:
    """Maps a file without keeping it open: `np.memmap` holds a descriptor for each array, and corpora have many."""
    content: NDArray[np.uint8] = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).numpy()
    content.flags.writeable = False
    return content


class TokenStore:
    """The documents of several shards as one list.

    Attributes:
        lengths_D: int64 stored tokens of each document, including its begin and end tokens.
        bytes_D: int64 UTF-8 bytes of the trained part of each document's text.
        unlearnt_D: int64 leading tokens of each document that are not trained.
    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = list(shards)
        counts = [len(shard.bytes_D) for shard in self._shards]
        self._first = np.cumsum([0, *counts])
        none = np.zeros(0, dtype=np.int64)
        self.lengths_D: NDArray[np.int64] = np.concatenate([none, *(np.diff(s.ends_D) for s in self._shards)])
        self.bytes_D: NDArray[np.int64] = np.concatenate([none, *(s.bytes_D for s in self._shards)])
        self.unlearnt_D: NDArray[np.int64] = np.concatenate([none, *(s.unlearnt_D for s in self._shards)])

    def __len__(self) -> int:
        return len(self.lengths_D)

    def read(self, document: int, start: int, stop: int) -> NDArray[np.int64]:
        """Returns tokens start..stop of a document as int64."""
        shard, offset = self._at(document)
        return shard.tokens_T[offset + start : offset + stop].astype(np.int64)

    def read_mask(self, document: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Returns for tokens start..stop of a document whether they are targets."""
        shard, offset = self._at(document)
        if shard.mask is None:
            return np.arange(start, stop) >= int(self.unlearnt_D[document])
        first, end = offset + start, offset + stop
        bits = np.unpackbits(shard.mask[first // 8 : -(-end // 8)])
        mask_T: NDArray[np.bool_] = bits[first % 8 : first % 8 + stop - start].astype(np.bool_)
        return mask_T

    def _at(self, document: int) -> tuple[Shard, int]:
        """Returns the shard of a document, and the document's start in it."""
        number = int(np.searchsorted(self._first, document, side="right")) - 1
        shard = self._shards[number]
        return shard, int(shard.ends_D[document - self._first[number]])
