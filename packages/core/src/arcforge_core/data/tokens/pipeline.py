"""From a data config to micro-batches.

The stream is a function of (seed, number of the micro-batch): resuming at any cursor and sharding by rank are
free, and rank r of W takes the micro-batches r, r + W, r + 2W, ...

Shapes: T tokens of a micro-batch, D documents.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from arcforge_core.config.schema import DataConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import Document, DocumentSource, TrainBatch
from arcforge_core.data.tokens.build import build_shards, read_manifest
from arcforge_core.data.tokens.packing import InOrder, Mixture, PackedPiece, Packing, Rule, Sequential, make_packings
from arcforge_core.data.tokens.shards import Shard, TokenStore, token_dtype
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.files.find import tokenizer_of
from arcforge_core.plugins.loader import registry
from arcforge_core.tokenizer.tokenizer import Tokenizer


def with_tokenizer(config: DataConfig, init: str) -> DataConfig:
    """Returns the configuration with the tokenizer of the initial checkpoint, unless another one is named.

    Raises:
        CheckpointError: the checkpoint does not exist.
    """
    if config.tokenizer.path is not None:
        return config
    return replace(config, tokenizer=replace(config.tokenizer, path=tokenizer_of(init, "init")))


def build_data(config: DataConfig, *, model_vocab_size: int, progress: bool = True) -> Corpus:
    """Returns the tokenised corpus of a data config; cached shards are reused.

    Args:
        config: source, tokenizer, split and packing.
        model_vocab_size: rows of the model's embedding; the size of a trained vocabulary unless the config sets one.
        progress: whether to show progress on standard error.

    Raises:
        ConfigError: the tokenizer has more entries than the model.
        DataError: the corpus or the tokenizer cannot be used.
    """
    wanted = config.tokenizer.vocab_size or model_vocab_size
    if config.tokenizer.path is None:
        check_vocabulary("data.tokenizer.vocab_size", wanted, wanted, model_vocab_size)
    else:
        size = Tokenizer.load(config.tokenizer.path).vocab_size
        check_vocabulary("data.tokenizer.path", config.tokenizer.path, size, model_vocab_size)
        if config.tokenizer.vocab_size is not None:
            accepted = f"must be omitted: the tokenizer of data.tokenizer.path has {size} entries"
            raise ConfigError("data.tokenizer.vocab_size", config.tokenizer.vocab_size, accepted)
    source: DocumentSource = registry().get("data", config.name).load()(config)
    folder = build_shards(config, source, wanted, progress)
    packing = Rule(config.packing, config.long_share, config.long_repeats)
    return Corpus(folder, packing, weights=getattr(source, "weights", None))


def check_vocabulary(field: str, value: object, size: int, model_vocab_size: int) -> None:
    """Raises `ConfigError` if the model has fewer rows than the tokenizer has ids."""
    if size > model_vocab_size:
        accepted = f"its {size} entries must fit in model.vocab_size={model_vocab_size}"
        raise ConfigError(field, value, accepted)


@dataclass(frozen=True)
class _Documents:
    """The documents of one stream, and the attribution of text bytes to their tokens."""

    store: TokenStore
    byte_lengths_V: np.ndarray[Any, np.dtype[np.int64]] | None

    def num_bytes(self, piece: PackedPiece, ids: np.ndarray[Any, np.dtype[np.int64]]) -> int:
        """Returns the number of UTF-8 bytes that a piece's targets encode; the pieces of a document sum to its length.

        Untrained targets count 0. If ids have no fixed byte length, a document's bytes are spread evenly over its
        targets.
        """
        if self.byte_lengths_V is not None:
            return int(self.byte_lengths_V[ids[1:]][self.learnt(piece)].sum())
        total = int(self.store.bytes_D[piece.document])
        learnt = self.store.read_mask(piece.document, 1, int(self.store.lengths_D[piece.document]))
        first, end = int(learnt[: piece.start].sum()), int(learnt[: piece.start + piece.length].sum())
        targets = max(1, int(learnt.sum()))
        return total * end // targets - total * first // targets

    def learnt(self, piece: PackedPiece) -> NDArray[np.bool_]:
        """Returns which of a piece's targets are trained."""
        return self.store.read_mask(piece.document, piece.start + 1, piece.start + piece.length + 1)


class Corpus:
    """A tokenised corpus.

    Attributes:
        folder: directory of its shards.
        tokenizer: its tokenizer.
        manifest: hashes, counts, licences and the recipe of the shards.
        whole: its documents are examples that are never cut, such as conversations.
    """

    def __init__(self, folder: Path, packing: Rule | None = None, weights: dict[str, float] | None = None) -> None:
        """Opens a directory written by `build_shards`.

        Args:
            folder: the directory.
            packing: of training rows; None: ``sequential``.
            weights: share of each source's tokens; None treats the documents of all sources as one list.
        """
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.tokenizer = Tokenizer.load(folder / "tokenizer")
        self.whole = "encoder" in self.manifest
        self._packing = packing or Rule()
        self._weights = weights

    def _documents(self, split: str, source: str | None = None) -> _Documents:
        dtype = token_dtype(self.manifest["tokenizer"]["vocab_size"])
        files = [
            s["file"]
            for s in self.manifest["shards"]
            if s["split"] == split and (source is None or s["source"] == source)
        ]
        table = self.tokenizer.byte_lengths_V if self.manifest["byte_counts"] == "table" else None
        return _Documents(TokenStore(Shard.open(self.folder / file, dtype) for file in files), table)

    def train_batches(
        self,
        sequence_length: int,
        micro_batch_tokens: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        start_cursor: int = 0,
    ) -> Iterator[TrainBatch]:
        """Yields this rank's micro-batches indefinitely; epochs follow each other.

        Args:
            sequence_length: positions of a row; documents longer than that are cut.
            micro_batch_tokens: positions of a micro-batch, a multiple of `sequence_length`. ``sequential`` gives
                exactly this number, the others at most.
            seed: of the order.
            rank, world_size: this process and the number of processes.
            start_cursor: `TrainBatch.cursor` of the last batch trained on, to continue after it.

        Raises:
            ConfigError: lengths that do not fit, or a rank outside the world.
            DataError: the training documents are shorter than one row, or ``long_documents`` finds no long one.
        """
        rows = _rows_per_batch(sequence_length, micro_batch_tokens)
        if not 0 <= rank < world_size or start_cursor < 0:
            raise ConfigError("rank", rank, f"must be in 0..{world_size - 1}, with a cursor >= 0 ({start_cursor})")
        names: list[str | None] = [None] if self._weights is None else list(self._weights)
        streams = [self._documents("train", name) for name in names]
        self._check_whole(streams, sequence_length)
        packings = make_packings(self._packing, [s.store.lengths_D - 1 for s in streams], sequence_length, seed)
        mixture = Mixture(packings, [1.0] if self._weights is None else list(self._weights.values()), seed)
        return self._stream(streams, mixture, rows, rank, world_size, start_cursor)

    def _check_whole(self, streams: Iterable[_Documents], sequence_length: int) -> None:
        """Raises `ConfigError` if rows are too short for examples that must not be cut."""
        longest = max((int(stream.store.lengths_D.max(initial=0)) for stream in streams), default=0)
        if self.whole and longest - 1 > sequence_length:
            accepted = (
                f"the longest conversation has {longest} tokens and must not be cut: at least {longest - 1}, or "
                f"data.max_tokens={sequence_length + 1}"
            )
            raise ConfigError("trainer.sequence_length", sequence_length, accepted)

    def _stream(
        self, streams: list[_Documents], mixture: Mixture, rows: int, rank: int, world_size: int, start_cursor: int
    ) -> Iterator[TrainBatch]:
        for cursor in itertools.count(start_cursor):
            first = (rank + world_size * cursor) * rows
            drawn = (mixture.row(number) for number in range(first, first + rows))
            pieces = ((streams[source], piece) for source, row in drawn for piece in row)
            yield _batch(pieces, cursor + 1)

    def heldout_batches(
        self, sequence_length: int, micro_batch_tokens: int, max_tokens: int | None = None
    ) -> Iterator[TrainBatch]:
        """Yields the held-out documents once, in a fixed order that mixes all parts of the corpus.

        Rows are packed as by ``sequential``, whatever the training packing, so that runs are comparable; the last
        row and micro-batch are shorter. Conversations are packed whole, by best fit.

        Args:
            sequence_length: positions of a row.
            micro_batch_tokens: positions of a micro-batch, a multiple of `sequence_length`.
            max_tokens: stop after this number of positions, rounded down to whole micro-batches but at least one;
                None takes all.

        Raises:
            ConfigError: lengths that do not fit.
            DataError: nothing was held out (``data.heldout=0``).
        """
        per_batch = _rows_per_batch(sequence_length, micro_batch_tokens)
        self.check_heldout()
        documents = self._documents("heldout")
        self._check_whole([documents], sequence_length)
        layout = InOrder if self.whole else partial(Sequential, seed=None)
        packing: Packing = layout(documents.store.lengths_D - 1, sequence_length)
        rows = packing.num_rows
        if max_tokens is not None:
            rows = min(rows, max(1, max_tokens // micro_batch_tokens) * per_batch)

        def batches() -> Iterator[TrainBatch]:
            for first in range(0, rows, per_batch):
                numbers = range(first, min(first + per_batch, rows))
                pieces = ((documents, piece) for number in numbers for piece in packing.row(number))
                yield _batch(pieces, first // per_batch + 1)

        return batches()

    def heldout_documents(self) -> list[Document]:
        """Returns the held-out documents.

        Raises:
            DataError: nothing was held out.
        """
        self.check_heldout()
        path = self.folder / self.manifest["heldout_texts"]["file"]
        with path.open(encoding="utf-8") as lines:
            return [Document.from_json(line) for line in lines]

    def heldout_prompts(self, count: int, most: int) -> list[list[int]]:
        """Returns the prompts before the first target of held-out examples, evenly spaced among them.

        Args:
            count: maximum number of examples.
            most: maximum number of prompt tokens; examples with longer prompts are skipped.

        Raises:
            DataError: nothing was held out.
        """
        self.check_heldout()
        store = self._documents("heldout").store
        prompts = []
        for document, length in enumerate(store.lengths_D.tolist()):
            first = int(store.read_mask(document, 0, length).argmax())
            if first <= most:
                prompts.append((document, first))
        chosen = [prompts[n * len(prompts) // count] for n in range(count)] if len(prompts) > count else prompts
        return [store.read(document, 0, first).tolist() for document, first in chosen]

    def heldout_bytes(self) -> bytes:
        """Returns the concatenated held-out texts, which `heldout_batches` predicts; for gzip and xz."""
        return b"".join(document.learnt.encode() for document in self.heldout_documents())

    def texts(self, split: str) -> Iterator[str]:
        """Yields the decoded documents of ``train`` or ``heldout``, without their begin and end tokens.

        Examples of conversations have the tags of the chat template.
        """
        store = self._documents(split).store
        for document, length in enumerate(store.lengths_D.tolist()):
            yield self.tokenizer.decode(store.read(document, 0, length)[1:-1].tolist())

    def check_heldout(self) -> None:
        """Raises `DataError` if nothing was held out."""
        if not self.manifest["splits"]["heldout"]:
            raise DataError("data.heldout=0: no documents are held out, so there is nothing to evaluate on")


def _rows_per_batch(sequence_length: int, micro_batch_tokens: int) -> int:
    if sequence_length < 1 or micro_batch_tokens < 1 or micro_batch_tokens % sequence_length:
        raise ConfigError(
            "trainer.micro_batch_tokens", micro_batch_tokens, f"must be a multiple of sequence_length={sequence_length}"
        )
    return micro_batch_tokens // sequence_length


def _batch(pieces: Iterable[tuple[_Documents, PackedPiece]], cursor: int) -> TrainBatch:
    """Reads the pieces, each as a segment, and one token after each piece as its last target."""
    inputs, targets, weights, lengths, num_bytes = [], [], [], [], 0
    for documents, piece in pieces:
        ids = documents.store.read(piece.document, piece.start, piece.start + piece.length + 1)
        inputs.append(ids[:-1])
        targets.append(ids[1:])
        weights.append(documents.learnt(piece))
        lengths.append(piece.length)
        num_bytes += documents.num_bytes(piece, ids)
    tokens_T = torch.from_numpy(np.concatenate(inputs))
    return TrainBatch(
        tokens_T=tokens_T,
        targets_T=torch.from_numpy(np.concatenate(targets)),
        weights_T=torch.from_numpy(np.concatenate(weights).astype(np.float32)),
        batch=SequenceBatch.build(lengths),
        cursor=cursor,
        num_bytes=num_bytes,
    )
