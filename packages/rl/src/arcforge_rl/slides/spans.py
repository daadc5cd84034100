"""Where pages are in the text of a reply, so that single ones can be left out of the loss."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import accumulate


def page_spans(text: str) -> list[tuple[int, int]]:
    """Returns start and end of the sections that lie in no other section, in characters."""
    finder = _Sections(text)
    finder.feed(text)
    finder.close()
    return finder.found


class _Sections(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[int, int]] = []
        self._lines = [0, *accumulate(len(line) for line in text.split("\n"))]
        self._text, self._depth, self._start = text, 0, 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            if not self._depth:
                self._start = self._place()
            self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "section" and self._depth:
            self._depth -= 1
            if not self._depth:
                self.found.append((self._start, self._text.index(">", self._place()) + 1))

    def _place(self) -> int:
        line, column = self.getpos()
        return self._lines[line - 1] + line - 1 + column


def masked(text: str, pages: tuple[bool, ...]) -> list[dict[str, object]] | None:
    """Returns a reply as parts of a message, of which defective pages are not trained on.

    Args:
        text: the reply.
        pages: whether each page is good.

    Returns:
        ``{"text"}`` and ``{"text", "train": False}``, which make the reply together; None where its pages cannot be
        told apart.
    """
    spans = page_spans(text)
    if len(spans) != len(pages):
        return None
    parts: list[dict[str, object]] = []
    at = 0
    for (start, end), good in zip(spans, pages, strict=True):
        if not good:
            parts += [{"text": text[at:start]}, {"text": text[start:end], "train": False}]
            at = end
    parts.append({"text": text[at:]})
    return [part for part in parts if part["text"]]
