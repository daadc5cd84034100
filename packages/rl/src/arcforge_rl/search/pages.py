"""Pages of a corpus: a title, labelled lines, a blank line, prose; read from jsonl and written as such."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arcforge_core.data.near import Phrases, words
from arcforge_core.data.sources.readers import is_utf8, json_objects
from arcforge_core.data.split import PHRASE, SHARE
from arcforge_core.errors import DataError

KIND, ALIASES = "Kind", "Also known as"
"""Labels with a meaning of their own: the kind of an entity, and its other names."""
LABELLED = re.compile(r"([A-Z][A-Za-z -]{0,40}): (\S.*)")
WORD = re.compile(r"[a-z]{5,}")
FIELDS = ("title", "text", "group", "kind", "aliases", "facts")


@dataclass(frozen=True)
class Page:
    """One page.

    Attributes:
        title: unique in its corpus; the name of the entity that the page is about.
        text: a paragraph of labelled lines (``Label: value; value``), then prose; either may be missing.
        group: pages of one group are on one side of the split; empty: the title.
    """

    title: str
    text: str
    group: str = ""

    @functools.cached_property
    def facts(self) -> dict[str, tuple[str, ...]]:
        """The values of the labelled lines, by label."""
        found: dict[str, tuple[str, ...]] = {}
        for line in self.text.split("\n\n", 1)[0].splitlines():
            match = LABELLED.fullmatch(line.strip())
            if match is None:
                return {}  # the first paragraph is prose
            found[match[1]] = (*found.get(match[1], ()), *values_of(match[2]))
        return found

    @functools.cached_property
    def prose(self) -> str:
        """The text below the labelled lines."""
        return self.text.partition("\n\n")[2] if self.facts else self.text

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """The words of the prose, in lower case, of five letters or more."""
        return frozenset(WORD.findall(self.prose.lower()))


def values_of(line: str) -> tuple[str, ...]:
    """Returns the values of a labelled line: between semicolons, or commas where there is no semicolon."""
    parts = line.split(";") if ";" in line else line.split(", ")
    return tuple(dict.fromkeys(value for part in parts if (value := " ".join(part.split()))))


def page_of(title: str, facts: Mapping[str, Sequence[str]], prose: str, group: str = "") -> Page:
    """Returns a page with its facts as labelled lines; labels without values are left out."""
    lines = [f"{label}: {'; '.join(values)}" for label, values in facts.items() if values]
    return Page(title, "\n".join(lines) + ("\n\n" if lines and prose else "") + prose, group)


def read_pages(path: Path) -> list[Page]:
    """Reads pages from jsonl: ``title`` and ``text``, and optionally ``group``, ``kind``, ``aliases`` and ``facts``.

    ``facts`` maps labels to a name or a list of names.

    Raises:
        DataError: the file cannot be read or has no page; a row is malformed or its title comes twice.
    """
    found: dict[str, Page] = {}
    for where, row in json_objects(path, FIELDS):
        page = _page(row, where)
        if page.title in found:
            raise DataError(f"{where}: the title {page.title!r} comes twice")
        found[page.title] = page
    if not found:
        raise DataError(f"{path} has no page")
    return list(found.values())


def _page(row: Mapping[str, Any], where: str) -> Page:
    texts = {name: row.get(name, "") for name in ("title", "text", "group", "kind")}
    for name, text in texts.items():
        if not isinstance(text, str) or not is_utf8(text):
            raise DataError(f"{where}: {name} must be a text")
    title = " ".join(texts["title"].split())
    if not title:
        raise DataError(f"{where}: title must not be empty")
    given = row.get("facts") or {}
    if not isinstance(given, dict):
        raise DataError(f"{where}: facts must map labels to names")
    facts = {KIND: texts["kind"] or (), ALIASES: row.get("aliases") or (), **given}
    lists = {label: [names] if isinstance(names, str) else names for label, names in facts.items()}
    for label, names in lists.items():
        fits = isinstance(names, list | tuple) and all(isinstance(name, str) and ";" not in name for name in names)
        if not fits or not LABELLED.fullmatch(f"{label}: x"):
            raise DataError(f"{where}: {label!r} must be a label of letters with a list of names without semicolons")
    if not any(lists.values()):
        return Page(title, texts["text"], texts["group"])
    return page_of(title, lists, texts["text"], texts["group"])


def with_groups(pages: Sequence[Page]) -> list[Page]:
    """Returns pages of which near copies without a group have one together, by the rule of `data.split`."""
    phrases = Phrases(PHRASE)
    for page in pages:
        if not page.group:
            phrases.add(page.title, words(page.prose))
    found = phrases.groups(SHARE)
    return [replace(page, group=found[page.title]) if page.title in found else page for page in pages]


def rows_of(pages: Iterable[Page]) -> Iterator[str]:
    """Yields the lines of a jsonl file with pages."""
    for page in pages:
        yield json.dumps({"title": page.title, "text": page.text, "group": page.group}) + "\n"


def digest_of(pages: Iterable[Page]) -> str:
    """Returns the SHA-256 of pages in their order, in hexadecimal."""
    found = hashlib.sha256()
    for row in rows_of(pages):
        found.update(row.encode())
    return found.hexdigest()
