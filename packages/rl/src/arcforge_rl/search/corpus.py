"""Corpora by name: the documentation of Python's library, jsonl files, web archives, and folders with HTML or texts."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path

from arcforge_core.console.progress import say
from arcforge_core.errors import DataError
from arcforge_rl.search.archives import gather
from arcforge_rl.search.library import library_pages
from arcforge_rl.search.pages import Page, read_pages, with_groups

PYTHON = "python"
"""The documentation of the running Python's standard library."""


def corpus_pages(corpus: Sequence[str]) -> list[Page]:
    """Returns the pages of a corpus, near copies in one group.

    Args:
        corpus: `PYTHON`, and paths of files and folders.

    Raises:
        DataError: a part cannot be read or has no page, or a title comes twice.
    """
    found: dict[str, Page] = {}
    for name in corpus:
        for page in _pages_of(name, found):
            if page.title in found:
                raise DataError(f"{name}: the title {page.title!r} is in another file, too")
            found[page.title] = page
    return with_groups(list(found.values()))


def _pages_of(name: str, taken: Container[str]) -> list[Page]:
    path = Path(name).expanduser()
    if name == PYTHON:
        return library_pages()
    if path.suffix == ".jsonl":
        return read_pages(path)
    found = gather(path, taken)
    skipped = "".join(f"; skipped: {count} {reason}" for reason, count in sorted(found.skipped.items()))
    say(f"{name}: {len(found.pages)} pages{skipped}")
    return found.pages
