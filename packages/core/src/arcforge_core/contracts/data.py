"""The data contract: a source yields documents; batches carry their own cursor."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:  # texts are read by processes that need no torch
    import torch
    from torch import Tensor

    from arcforge_core.contracts.batch import SequenceBatch
    from arcforge_core.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Document:
    """One text.

    Attributes:
        key: stable name, e.g. a path relative to the corpus root; decides the split, together with near copies.
        text: the text.
        source: name of the corpus.
        licence: licence of the text, or ``unknown``.
        part_of: key of the document of which this text repeats a part. Such a text is only trained on, and dropped when
            that document is held out.
        text_of: keys of the documents that this text quotes; it is held out if one of them is.
        learnt_from: leading characters that are context and carry no loss.
    """

    key: str
    text: str
    source: str
    licence: str = "unknown"
    part_of: str | None = None
    text_of: tuple[str, ...] = ()
    learnt_from: int = 0

    @staticmethod
    def from_json(line: str) -> Document:
        """Reads what `to_json` wrote."""
        fields = json.loads(line)
        return Document(**{**fields, "text_of": tuple(fields["text_of"])})

    def to_json(self) -> str:
        """Returns the document as one line of JSON, with its end."""
        return json.dumps(vars(self)) + "\n"

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
            DataError: there is nothing readable.
        """

    def fingerprint(self) -> str:
        """Returns a short hash that changes with the corpus; cheap (names, sizes and times of files)."""


@runtime_checkable
class QuotingSource(DocumentSource, Protocol):
    """A corpus that quotes text of another component's documents, see `Document.text_of`.

    Attributes:
        text_from: name of that component.
        text_prefix: prefix of that component's keys in this corpus; set by a mixture.
    """

    text_from: str
    text_prefix: str


@dataclass(frozen=True)
class Example:
    """A document as training tokens.

    Attributes:
        ids: all tokens, including begin and end tokens.
        num_bytes: UTF-8 bytes of the trained text.
        unlearnt: leading tokens that are not trained; for examples without `trained`.
        trained: whether each token is a target; None if all tokens after the `unlearnt` ones are.
    """

    ids: Sequence[int]
    num_bytes: int
    unlearnt: int = 0
    trained: Sequence[bool] | None = None


class Encoder(Protocol):
    """Encodes the documents of one build to tokens.

    Attributes:
        exact: `Example.num_bytes` equals the sum of the tokenizer's byte lengths over the targets.
    """

    exact: bool

    def encode(self, document: Document) -> list[Example]:
        """Returns the examples of a document, [] if it is dropped; called once for every document."""

    def finish(self, folder: Path) -> dict[str, Any]:
        """Writes reports about the corpus beside its shards, and returns its part of the manifest."""


@runtime_checkable
class EncodingSource(DocumentSource, Protocol):
    """A corpus that encodes its documents to tokens itself, such as conversations by a chat template.

    Its examples are never cut: rows of training and evaluation hold them whole.
    """

    def encoder(self, tokenizer: Tokenizer) -> Encoder:
        """Returns a fresh encoder."""

    def text(self, document: Document) -> str:
        """Returns the text on which a vocabulary is trained."""

    def compared(self, document: Document) -> str:
        """Returns the text by which near copies are found: without that which many documents share by design."""


@dataclass(frozen=True)
class TrainBatch:
    """One micro-batch of packed documents. T tokens in N segments (documents or their pieces).

    Attributes:
        tokens_T: int64 inputs.
        targets_T: int64, the next token of the same document.
        weights_T: float32 loss weights, 0 where there is no next token.
        batch: the segments.
        cursor: micro-batches delivered on this rank, including this one; stored in checkpoints.
        num_bytes: UTF-8 bytes of text covered by the weighted targets, for bits per byte.
    """

    tokens_T: Tensor
    targets_T: Tensor
    weights_T: Tensor
    batch: SequenceBatch
    cursor: int
    num_bytes: int

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TrainBatch:
        """Moves the tensors; Lightning calls it on the whole batch."""
        return dataclasses.replace(
            self,
            tokens_T=self.tokens_T.to(device, non_blocking=non_blocking),
            targets_T=self.targets_T.to(device, non_blocking=non_blocking),
            weights_T=self.weights_T.to(device, non_blocking=non_blocking),
            batch=self.batch.to(device, non_blocking=non_blocking),
        )
