"""Pages as files of a task."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from arcforge_rl.search.pages import Page
from arcforge_rl.terminal.drafts import Draft

LONGEST = 1500
"""Characters of the prose in a file."""
FEWEST = 4
"""Pages with labelled lines that a task needs."""
FORMAT = """
Each file in `/app/pages` is a page: its title in the first line, an empty line, then a paragraph of labelled lines
(`Label: value; value`), an empty line, and prose. Lines of the prose that look like labelled lines are prose.
"""
READ = """
import pathlib
pages = {}
for path in pathlib.Path("pages").glob("*.txt"):
    title, _, rest = path.read_text().partition("\\n")
    pages[title] = {}
    for line in LINES:
        label, colon, values = line.partition(": ")
        if colon:
            pages[title].setdefault(label, []).extend(value.strip() for value in values.split(";"))
"""
HEAD, ALL = 'rest.strip("\\n").split("\\n\\n")[0].splitlines()', "rest.splitlines()"
"""Lines that count, and those that look as if they did."""


class Unfit(Exception):
    """Pages of which a family cannot make a task; the message says why."""


PageFamily = Callable[[random.Random, Sequence[Page]], Draft]
"""Draws a task about pages; equal states of the generator give equal tasks.

Raises:
    Unfit: the pages do not fit.
"""


def described(pages: Sequence[Page]) -> list[Page]:
    """Returns the pages that have labelled lines.

    Raises:
        Unfit: there are too few.
    """
    found = [page for page in pages if page.facts]
    if len(found) < FEWEST:
        raise Unfit(f"{len(found)} pages have labelled lines, and {FEWEST} are needed")
    return found


def files_of(
    draw: random.Random, pages: Sequence[Page], notes: Mapping[str, str], lines: Mapping[str, str] | None = None
) -> dict[str, str | bytes]:
    """Returns files of pages, in no order.

    Args:
        draw: decides their names.
        pages: with labelled lines.
        notes: lines that end the prose, by title.
        lines: further values for a labelled line, by title: a whole line that replaces the one with its label.
    """
    numbers = draw.sample(range(10, 100), len(pages))
    files: dict[str, str | bytes] = {}
    for number, page in zip(numbers, pages, strict=True):
        head = [f"{label}: {'; '.join(values)}" for label, values in page.facts.items()]
        if (own := (lines or {}).get(page.title)) is not None:
            head = [own if one.split(":")[0] == own.split(":")[0] else one for one in head]
        prose = "\n".join([page.prose[:LONGEST].rpartition("\n")[0] or page.prose[:LONGEST], notes.get(page.title, "")])
        files[f"pages/{number}.txt"] = "\n".join([page.title, "", *head, "", prose.strip(), ""])
    return files
