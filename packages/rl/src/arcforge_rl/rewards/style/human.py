"""Texts that people wrote: those that ship with Python, or files of one's own."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from arcforge_core.data.conversations.records import ENDINGS, read_rows
from arcforge_core.data.sources.readers import walk
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.objectives.text import END, paragraphs, words

LENGTHS = (8, 16, 32, 64, 128, 256)
"""Words of compared passages: a long text has the average style, a short one any."""
MOST, FEWEST = 400, 20
"""Passages of a length at most; those that a length needs."""
NEARLY = 0.7
"""Share of a length that the end of a text needs."""


def passages(texts: Sequence[str]) -> dict[int, list[str]]:
    """Returns passages by their length in words: whole sentences in order, until they have that many.

    Args:
        texts: no passage is of two of them, and markup and lines stay as they are.
    """
    found: dict[int, list[str]] = {}
    for length in LENGTHS:
        made = [passage for text in texts for passage in cut(text, length)]
        random.Random(0).shuffle(made)
        if len(made) >= FEWEST:
            found[length] = made[:MOST]
    return found


def cut(text: str, length: int) -> Iterator[str]:
    """Yields the passages of a text with at least `length` words, and an end that has nearly as many."""
    start = 0
    for end in [*(found.end() for found in END.finditer(text)), len(text)]:
        if len(words(text[start:end])) >= length:
            yield text[start:end].strip()
            start = end
    if len(words(text[start:])) >= NEARLY * length:
        yield text[start:].strip()


@functools.cache
def python_texts() -> tuple[str, ...]:
    """Returns the prose of each reference page that ships with Python, without code, lists and headings."""
    from pydoc_data.topics import topics  # 500 kB, which only verifiers need

    pages = (
        " ".join(" ".join(part.split()) for part in paragraphs(str(page)) if is_prose(part)) for page in topics.values()
    )
    return tuple(page for page in pages if page)


def is_prose(paragraph: str) -> bool:
    """Returns whether a paragraph is a whole sentence at least, at the left margin."""
    lines = paragraph.splitlines()
    whole = re.match(r"[A-Z]", paragraph) is not None and paragraph.endswith((".", ":", "?"))
    return whole and len(words(paragraph)) >= 12 and not any(line.startswith((" ", "*", "-")) for line in lines)


def texts_of(files: Sequence[str], field: str) -> tuple[str, ...]:
    """Returns the texts of files, or those that ship with Python if none are named.

    Records (jsonl, json, parquet) give their ``reply``, ``text`` or last message; other files are read as they are,
    paragraph by paragraph.

    Raises:
        ConfigError: a file does not exist, or gives no text.
        DataError: a file of records cannot be read.
    """
    if not files:
        return python_texts()
    found: list[str] = []
    for name in files:
        path = Path(name).expanduser()
        if not path.exists():
            raise ConfigError(field, name, "no such file or folder")
        for file in [path] if path.is_file() else walk(path):
            found += replies_of(file) if file.suffix in ENDINGS else paragraphs(read(file))
    if not found:
        raise ConfigError(field, list(files), "has no text")
    return tuple(found)


def read(path: Path) -> str:
    """Returns a text in UTF-8.

    Raises:
        DataError: it is none.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text: {error}") from error


def replies_of(path: Path) -> list[str]:
    """Returns the texts of a file's records."""
    found = []
    for row in read_rows(path):
        record = row.record or {}
        text = record.get("reply", record.get("text"))
        if text is None and isinstance(record.get("messages"), list) and record["messages"]:
            last = record["messages"][-1]
            text = last.get("content") if isinstance(last, dict) else None
        if isinstance(text, str) and words(text):
            found.append(text)
    return found
