"""The data contract: a source yields documents; batches carry their own cursor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from arcforge_core.contracts.batch import SequenceBatch

if TYPE_CHECKING:
    from arcforge_core.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Document:
    """One text.

    Attributes:
        key: stable name, e.g. a path below the corpus root; decides the split.
        text: the text.
        source: name of the corpus.
        licence: licence of the text, or ``unknown``.
        part_of: key of the document that this text repeats a part of. Such a text is only trained on, and left out
            when that document is held out.
        text_of: key of the document whose text this one shows between its own; it is on that one's side of the split.
        learnt_from: characters at the beginning that are read and carry no loss.
    """

    key: str
    text: str
    source: str
    licence: str = "unknown"
    part_of: str | None = None
    text_of: str | None = None
    learnt_from: int = 0

    @property
    def learnt(self) -> str:
        """The part of the text that carries the loss."""
        return self.text[self.learnt_from :]


class DocumentSource(Protocol):
    """A corpus; its target is called as ``target(config)``.

    A source may have an attribute ``weights``: shares of the training tokens by `Document.source`.
    """

    def documents(self) -> Iterator[Document]:
        """Yields every document, always in the same order.

        Raises:
            DataError: nothing readable is there.
        """

    def fingerprint(self) -> str:
        """Returns a short hash that changes when the corpus does; cheap (names, sizes and times of files)."""


@runtime_checkable
class QuotingSource(DocumentSource, Protocol):
    """A corpus that shows text of another component's documents, as `Document.text_of` says.

    Attributes:
        text_from: name of that component.
        text_prefix: what stands before its keys in this corpus; a mixture sets it.
    """

    text_from: str
    text_prefix: str


@dataclass(frozen=True)
class Example:
    """A document as tokens, as it is trained on.

    Attributes:
        ids: all tokens, what begins and ends it included.
        num_bytes: UTF-8 bytes of the text that is learnt.
        unlearnt: leading tokens that are not learnt; for examples without `trained`.
        trained: whether each token is a target; None when all behind the `unlearnt` ones are.
    """

    ids: Sequence[int]
    num_bytes: int
    unlearnt: int = 0
    trained: Sequence[bool] | None = None


class Encoder(Protocol):
    """Documents of one build to tokens.

    Attributes:
        exact: `Example.num_bytes` is what the tokenizer's table of byte lengths gives for the targets.
    """

    exact: bool

    def encode(self, document: Document) -> list[Example]:
        """Returns the examples of a document, none when it is left out; every document is asked for once."""

    def finish(self, folder: Path) -> dict[str, Any]:
        """Writes what there is to say about the corpus beside its shards, and returns its part of the manifest."""


@runtime_checkable
class EncodingSource(DocumentSource, Protocol):
    """A corpus that turns its documents into tokens itself, as conversations by a chat template.

    Its examples are never cut: rows of training and evaluation hold them whole.
    """

    def encoder(self, tokenizer: Tokenizer) -> Encoder:
        """Returns a fresh encoder."""

    def text(self, document: Document) -> str:
        """Returns the text that a vocabulary is trained on."""


@dataclass(frozen=True)
class TrainBatch:
    """One micro-batch of packed documents. T tokens in N segments (documents or their pieces).

    Attributes:
        tokens_T: int64 inputs.
        targets_T: int64, the next token of the same document.
        weights_T: float32 loss weights, 0 where there is no next token.
        batch: the segments.
        cursor: micro-batches of this rank delivered so far, this one included; what a checkpoint stores.
        num_bytes: UTF-8 bytes of the text that the weighted targets stand for, for bits per byte.
    """

    tokens_T: Tensor
    targets_T: Tensor
    weights_T: Tensor
    batch: SequenceBatch
    cursor: int
    num_bytes: int

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TrainBatch:
        """Moves the tensors; a class with `.to` is taken whole by Lightning."""
        return dataclasses.replace(
            self,
            tokens_T=self.tokens_T.to(device, non_blocking=non_blocking),
            targets_T=self.targets_T.to(device, non_blocking=non_blocking),
            weights_T=self.weights_T.to(device, non_blocking=non_blocking),
            batch=self.batch.to(device, non_blocking=non_blocking),
        )
