"""The tools of a searcher: ``search`` finds pages, ``open`` shows one, ``find`` finds lines in it."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Sequence
from typing import Any

from arcforge_core.contracts.chat import Tool, ToolCall
from arcforge_core.errors import ConfigError
from arcforge_rl.search.pages import Page

HITS = 8
"""Pages that a search returns."""
LINES, LONGEST_LINE = 60, 400
"""Lines that ``open`` shows from a line on, and characters of a shown line."""
FOUND = 20
"""Lines that ``find`` returns."""
SNIPPET = 160
TITLE_WEIGHT = 3
"""Times that the title counts as the text does."""


def _tool(name: str, description: str, required: str, optional: str = "") -> Tool:
    kinds = {word: {"type": "integer" if word == "line" else "string"} for word in f"{required} {optional}".split()}
    schema = {"type": "object", "properties": kinds, "required": required.split()}
    return Tool({"type": "function", "function": {"name": name, "description": description, "parameters": schema}})


TOOLS = (
    _tool("search", f"Returns the titles of the {HITS} pages that fit some words best, each with a line.", "query"),
    _tool("open", f"Shows the {LINES} lines of a page from a line on, by default from the first.", "page", "line"),
    _tool("find", "Returns the lines of a page that contain a text, whatever its case.", "page text"),
)


class Library:
    """Pages and their index; safe for use by several threads.

    Args:
        pages: of the corpus.

    Raises:
        ConfigError: the package of the index is not installed.
    """

    def __init__(self, pages: Sequence[Page]) -> None:
        try:
            import bm25s
        except ImportError as error:
            raise ConfigError("environment", "search", "needs bm25s: pip install 'arcforge-rl[search]'") from error
        self.pages = {page.title: page for page in pages}
        self._titles, self._bm25s, self._lock = [*self.pages], bm25s, threading.Lock()

    @functools.cached_property
    def _index(self) -> Any:
        texts = [f"{f'{page.title} ' * TITLE_WEIGHT}\n{page.text}" for page in self.pages.values()]
        index = self._bm25s.BM25()
        index.index(self._bm25s.tokenize(texts, show_progress=False), show_progress=False)
        return index

    def ranked(self, query: str, count: int) -> list[str]:
        """Returns the titles that fit a query best, best first; those without any of its words are left out."""
        (words,) = self._bm25s.tokenize([query], return_ids=False, show_progress=False)
        with self._lock:
            index = self._index
        known = [word for word in words if word in index.vocab_dict]
        if not known:
            return []
        scores = index.get_scores(known)
        best = scores.argsort(kind="stable")[::-1][:count]
        return [self._titles[number] for number in best if scores[number] > 0]

    def search(self, query: str) -> str:
        """Returns titles with the line of the page that has most of the query's words."""
        titles = self.ranked(query, HITS)
        if not titles:
            return "No page has these words."
        return "\n".join(f"{title}\n    {self._snippet(title, query)}" for title in titles)

    def open(self, page: str, line: Any = 1) -> str:
        """Returns numbered lines of a page."""
        found = self._page(page)
        if isinstance(found, str):
            return found
        lines = found.text.splitlines()
        first = int(line) if str(line).isdecimal() and len(str(line)) < 9 else 0
        if not 1 <= first <= max(1, len(lines)):
            return f"Error: line must be between 1 and {max(1, len(lines))}"
        shown = lines[first - 1 : first - 1 + LINES]
        left = len(lines) - (first - 1 + len(shown))
        return "\n".join([found.title, *_numbered(shown, first), *([f"[{left} more lines]"] if left else [])])

    def find(self, page: str, text: str) -> str:
        """Returns the numbered lines of a page that contain a text."""
        found = self._page(page)
        if isinstance(found, str):
            return found
        lines = found.text.splitlines()
        hits = [number for number, line in enumerate(lines, 1) if text and text.casefold() in line.casefold()]
        shown = [line for number in hits[:FOUND] for line in _numbered([lines[number - 1]], number)]
        more = [f"[{len(hits) - FOUND} more lines]"] if len(hits) > FOUND else []
        return "\n".join([*shown, *more]) or f"No line of {found.title} contains this text."

    async def use(self, call: ToolCall) -> str:
        """Runs a call of `TOOLS`; each works in a thread."""
        given = call.arguments
        if call.name == "search":
            return await asyncio.to_thread(self.search, str(given["query"])[: SNIPPET * 10])
        if call.name == "open":
            return await asyncio.to_thread(self.open, str(given["page"]), given.get("line", 1))
        return await asyncio.to_thread(self.find, str(given["page"]), str(given["text"]))

    def _page(self, title: str) -> Page | str:
        named = " ".join(title.split())
        if named in self.pages:
            return self.pages[named]
        near = self.ranked(named[:100], 1)
        return f"Error: there is no page {named[:100]!r}{f'; did you mean {near[0]!r}?' if near else ''}"

    def _snippet(self, title: str, query: str) -> str:
        words = {word.strip(".,;:()\"'“”").casefold() for word in query.split()} - {""}
        lines = [" ".join(line.split()) for line in self.pages[title].text.splitlines() if line.strip()]
        best = max(lines, key=lambda line: sum(word in line.casefold() for word in words), default="")
        return best[:SNIPPET]


def _numbered(lines: Sequence[str], first: int) -> list[str]:
    return [f"{number}: {line[:LONGEST_LINE]}" for number, line in enumerate(lines, first)]
