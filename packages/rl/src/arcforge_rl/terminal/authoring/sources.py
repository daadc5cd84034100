"""The material of tasks: seeds, each in any number of variations, and related pages of a corpus."""

from __future__ import annotations

import importlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcforge_core.data.sources.readers import json_objects
from arcforge_core.errors import DataError
from arcforge_rl.search.pages import ALIASES, Page
from arcforge_rl.terminal.authoring.topics import OTHER, is_technical, topic_of
from arcforge_rl.terminal.table import FAMILIES

SIZES = {"easy": 6, "medium": 12, "hard": 24}
"""Difficulty -> number of pages that its task is about."""
FEWEST_WORDS = 30
"""Of a page's prose."""
FIELDS = ("text", "title", "topic", "difficulty")


@dataclass(frozen=True)
class TaskSource:
    """The material of one task.

    Attributes:
        route: ``seeds`` or ``pages``.
        key: names it among all sources of its route.
        title, text: for the author.
        topic: one of `topics.TOPICS`, or ``other``.
        difficulty: one of `SIZES`, or empty.
        group: tasks of one group are on one side of the split.
        pages: the page and those that it leads to; empty for a seed.
    """

    route: str
    key: str
    title: str
    text: str
    topic: str
    difficulty: str
    group: str
    pages: tuple[Page, ...] = ()


def read_seeds(path: Path | None) -> list[TaskSource]:
    """Reads seeds from jsonl: ``text``, and optionally ``title``, ``topic`` and ``difficulty``.

    Args:
        path: of the file; None: one seed for each template family.

    Raises:
        DataError: the file cannot be read or has no seed; a row is malformed or comes twice.
    """
    if path is None:
        modules = {name: importlib.import_module(f"arcforge_rl.terminal.families.{name}") for name in FAMILIES}
        return [_seed({"text": str(module.__doc__), "topic": name, "title": name}, name)
                for name, module in modules.items()]  # fmt: skip
    found: dict[str, TaskSource] = {}
    for where, row in json_objects(path, FIELDS):
        seed = _seed(row, where)
        if seed.key in found:
            raise DataError(f"{where}: the title {seed.key!r} comes twice")
        found[seed.key] = seed
    if not found:
        raise DataError(f"{path} has no seed")
    return list(found.values())


def _seed(row: Mapping[str, Any], where: str) -> TaskSource:
    for name in FIELDS:
        if not isinstance(row.get(name, ""), str):
            raise DataError(f"{where}: {name} must be a text")
    text = row.get("text", "").strip()
    if not text:
        raise DataError(f"{where}: text must not be empty")
    if (difficulty := row.get("difficulty", "")) not in ("", *SIZES):
        raise DataError(f"{where}: difficulty={difficulty!r}: must be one of {', '.join(SIZES)}")
    title = row.get("title") or " ".join(text.split()[:8])
    topic = row.get("topic") or topic_of(f"{title} {text}")
    return TaskSource("seeds", title, title, text, topic, difficulty, f"seed/{title}")


def variations(seeds: Sequence[TaskSource]) -> Iterator[TaskSource]:
    """Yields the seeds in turn, without end; each time as a further variation."""
    for number in itertools.count():
        for seed in seeds:
            yield TaskSource(seed.route, f"{seed.key}/{number}", seed.title, seed.text, seed.topic, seed.difficulty,
                         seed.group)  # fmt: skip


def classify(pages: Sequence[Page]) -> tuple[list[tuple[Page, list[Page]]], Counter[str]]:
    """Returns the pages that suit tasks, each with those that it leads to, and reasons against the others, counted."""
    named = {name: page for page in pages for name in (page.title, *page.facts.get(ALIASES, ()))}
    links = {page.title: _linked(page, named) for page in pages}
    suited, refused = list[tuple[Page, list[Page]]](), Counter[str]()
    for page in pages:
        related = _related(page, links)
        if len(page.prose.split()) < FEWEST_WORDS:
            refused["too short"] += 1
        elif not is_technical(page.text):
            refused["not about programs"] += 1
        elif len(related) < SIZES["easy"] - 1:
            refused["leads to too few pages"] += 1
        else:
            suited.append((page, related))
    return suited, refused


def _linked(page: Page, named: Mapping[str, Page]) -> list[Page]:
    """Returns the pages that labelled lines name."""
    return [named[value] for values in page.facts.values() for value in values if value in named]


def _related(page: Page, links: Mapping[str, list[Page]]) -> list[Page]:
    """Returns pages in the order of the number of links to them, as many as a hard task takes."""
    found, reached = {page.title: page}, [page]
    for one in reached:  # which grows
        for other in links[one.title]:
            if other.title not in found and len(found) < SIZES["hard"]:
                found[other.title] = other
                reached.append(other)
    return reached[1:]


def stratified(suited: Sequence[tuple[Page, list[Page]]], seed: int) -> Iterator[TaskSource]:
    """Yields a source for each page: strata of topic and difficulty in turn, groups that were not used first."""
    strata: dict[tuple[str, str], list[TaskSource]] = defaultdict(list)
    for page, related in suited:
        fits = [name for name, size in SIZES.items() if len(related) >= size - 1]
        difficulty = random.Random(f"{seed}/{page.title}").choice(fits)
        topic, pages = topic_of(page.text), (page, *related[: SIZES[difficulty] - 1])
        group = f"page/{page.group or page.title}"
        strata[topic, difficulty].append(
            TaskSource("pages", page.title, page.title, page.text, topic, difficulty, group, pages)
        )
    order = sorted(strata, key=lambda stratum: (stratum[0] == OTHER, stratum))
    for stratum in order:
        random.Random(f"{seed}/{stratum}").shuffle(strata[stratum])
    used = Counter[str]()
    while any(strata.values()):
        for stratum in order:
            if left := strata[stratum]:
                source = min(left, key=lambda one: used[one.group])
                left.remove(source)
                used[source.group] += 1
                yield source
