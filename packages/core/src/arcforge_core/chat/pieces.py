"""Splits sampled ids or text, in pieces of any size, into tags and the text between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from arcforge_core.errors import ConfigError
from arcforge_core.tokenizer.tokenizer import TextStream, Tokenizer


@dataclass(frozen=True)
class Tag:
    """A tag in a completion."""

    name: str


class TagSearch:
    """Finds tags in text that arrives in pieces; holds back text that may be the beginning of a tag."""

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = tuple(tags)
        self._pattern = re.compile("|".join(map(re.escape, self._tags))) if self._tags else None
        self._held = ""

    def push(self, text: str) -> Iterator[Tag | str]:
        """Yields tags and text up to where a tag may have begun."""
        text, self._held = self._held + text, ""
        while self._pattern is not None and (found := self._pattern.search(text)):
            if found.start():
                yield text[: found.start()]
            yield Tag(found[0])
            text = text[found.end() :]
        kept = max((n for tag in self._tags for n in range(1, len(tag)) if text.endswith(tag[:n])), default=0)
        self._held = text[len(text) - kept :]
        if len(text) > kept:
            yield text[: len(text) - kept]

    def flush(self) -> str:
        """Returns the text that was held back, which was not a tag."""
        text, self._held = self._held, ""
        return text


class Pieces:
    """Splits a completion into tags and text.

    Args:
        tags: the tags to find.
        tokenizer: decodes ids. A tag that is one of its tokens counts only as that token; the same characters spelt by
            other tokens are text. None if text is fed.
    """

    def __init__(self, tags: Sequence[str], tokenizer: Tokenizer | None) -> None:
        special = {} if tokenizer is None else tokenizer.special
        self._by_id = {special[tag]: Tag(tag) for tag in tags if tag in special}
        self._stream = None if tokenizer is None else TextStream(tokenizer)
        self._spelt = TagSearch([tag for tag in tags if tag not in special])
        self._written = TagSearch(tags)

    def of_ids(self, ids: Iterable[int]) -> Iterator[Tag | str]:
        """Yields the tags and text that these ids complete.

        Raises:
            ConfigError: the tokenizer is None.
        """
        if self._stream is None:
            raise ConfigError("tokenizer", None, "must be given to a parser that is fed ids")
        for id_ in ids:
            if id_ in self._by_id:
                yield from self.rest()
                yield self._by_id[id_]
            else:
                yield from self._spelt.push(self._stream.push(id_))

    def of_text(self, text: str) -> Iterator[Tag | str]:
        """Yields the tags and text that this text completes."""
        return self._written.push(text)

    def rest(self) -> Iterator[Tag | str]:
        """Yields the text that was held back."""
        if self._stream is not None:
            yield from self._spelt.push(self._stream.flush())
        text = self._spelt.flush() + self._written.flush()
        if text:
            yield text
