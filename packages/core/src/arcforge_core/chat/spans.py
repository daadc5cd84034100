"""A conversation as spans of text with their authors, and their encoding to token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from arcforge_core.contracts.chat import TEMPLATE, Rendered
from arcforge_core.errors import ConfigError
from arcforge_core.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Span:
    """A part of a conversation by one author.

    Attributes:
        text: its characters.
        special: the text is one special token. All other text is encoded as plain text, even if it spells a token.
        author, message, trained: as in `Rendered`.
        begins_run: preceding text is encoded without this span, as a prompt is encoded before its completion exists.
    """

    text: str
    special: bool = False
    author: str = TEMPLATE
    message: int = -1
    trained: bool = False
    begins_run: bool = False


def encode_spans(tokenizer: Tokenizer, spans: Iterable[Span], is_prompt: bool = False) -> Rendered:
    """Encodes spans; consecutive text between special tokens is encoded as one string.

    A token that covers text of two authors belongs to the later one. Nothing in a prompt is trained on.

    Raises:
        ConfigError: a text that UTF-8 cannot encode.
    """
    ids: list[int] = []
    owners: list[Span] = []
    for run in _runs(spans):
        if run[0].special:
            ids.append(tokenizer.special[run[0].text])
            owners.append(run[0])
            continue
        new, of_token = _encode_run(tokenizer, run)
        ids += new
        owners += of_token
    return Rendered(
        tuple(ids),
        tuple(span.author for span in owners),
        tuple(span.message for span in owners),
        tuple(span.trained and not is_prompt for span in owners),
    )


def _runs(spans: Iterable[Span]) -> Iterator[list[Span]]:
    run: list[Span] = []
    for span in spans:
        if run and (span.special or span.begins_run or run[0].special):
            yield run
            run = []
        run.append(span)
    if run:
        yield run


def _encode_run(tokenizer: Tokenizer, run: Sequence[Span]) -> tuple[list[int], list[Span]]:
    text = "".join(span.text for span in run)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError("messages", text[max(error.start - 20, 0) : error.end + 20], str(error)) from error
    if len(run) == 1:
        ids = tokenizer.encode(text)
        return ids, [run[0]] * len(ids)
    ids, last = tokenizer.encode_with_ends(text)
    ends = list(accumulate(len(span.text) for span in run))
    owners, current = [], 0
    for character in last:
        while ends[current] <= character:
            current += 1
        owners.append(run[current])
    return ids, owners
