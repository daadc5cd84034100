"""Splits sampled ids or text, in pieces of any size, into tags and the text between them."""

from __future__ import annotations

import functools
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
        self._pattern, self._begun, self._longest = _compiled(tuple(tags))
        self._held = ""

    def push(self, text: str) -> Iterator[Tag | str]:
        """Yields tags and text up to where a tag may have begun."""
        if not text:
            return
        text, self._held = self._held + text, ""
        while self._pattern is not None and (found := self._pattern.search(text)):
            if found.start():
                yield text[: found.start()]
            yield Tag(found[0])
            text = text[found.end() :]
        kept = next((n for n in range(min(self._longest, len(text)), 0, -1) if text[-n:] in self._begun), 0)
        self._held = text[len(text) - kept :]
        if len(text) > kept:
            yield text[: len(text) - kept]

    def flush(self) -> str:
        """Returns the text that was held back, which was not a tag."""
        text, self._held = self._held, ""
        return text


@functools.lru_cache(1024)
def _compiled(tags: tuple[str, ...]) -> tuple[re.Pattern[str] | None, frozenset[str], int]:
    """Returns the pattern of tags, None for no tags; their beginnings, and the length of the longest of these."""
    begun = frozenset(tag[:n] for tag in tags for n in range(1, len(tag)))
    return re.compile("|".join(map(re.escape, tags))) if tags else None, begun, max(map(len, begun), default=0)


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
        run: list[int] = []
        for id_ in ids:
            if id_ not in self._by_id:
                run.append(id_)
                continue
            yield from self._spelt.push(self._stream.push_all(run))
            run = []
            yield from self.rest()
            yield self._by_id[id_]
        yield from self._spelt.push(self._stream.push_all(run))

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
