"""Everything that a page leads to, over any number of steps; a decoy in some prose leads further."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from arcforge_rl.search.pages import Page
from arcforge_rl.terminal.authoring.pages.drawing import ALL, FORMAT, HEAD, READ, Unfit, described, files_of
from arcforge_rl.terminal.drafts import Draft, python, rule

FOLLOW = """
label, start = LABEL, START
found, left = set(), [start]
while left:
    for name in pages.get(left.pop(), {}).get(label, []):
        if name not in found AND_THERE:
            found.add(name)
            MORE
found.discard(start)
open("reached.txt", "w").write("".join(f"{name}\\n" for name in sorted(found)))
"""


def draw(draw: random.Random, pages: Sequence[Page]) -> Draft:
    """Draws a label and a page from which more is reached than what it names itself."""
    pages = described(pages)
    titles = [page.title for page in pages]
    labels = sorted({label for page in pages for label in page.facts})
    choices = draw.sample([(label, start) for label in labels for start in titles], len(labels) * len(titles))
    for label, start in choices:
        edges = {page.title: page.facts.get(label, ()) for page in pages}
        there = {name: [other for other in named if other in edges] for name, named in edges.items()}
        wanted = reached(start, there)
        inside = [name for name in (start, *wanted) if edges[name]]
        outside = sorted({*titles} - wanted - {start})
        absent = any(name not in edges for one in inside for name in edges[one])
        if len(wanted) >= 3 and wanted != {*there[start]} - {start} and outside and absent:
            break
    else:
        raise Unfit("no label leads from page to page")
    notes = {draw.choice(inside): f"{label}: {draw.choice(outside)}"}
    instruction = f"""{FORMAT}
Write to `/app/reached.txt` the titles of all pages that one reaches from `{start}` along lines of the label `{label}`
in any number of steps, one in each line, in the order of their code points. Values that are no title of a page do not
count, and neither does `{start}` itself.
"""
    return Draft(
        instruction,
        files_of(draw, pages, notes),
        [rule("lines", "reached.txt", lines=sorted(wanted))],
        solve(label, start),
        [
            solve(label, start, lines=ALL),
            solve(label, start, there=""),
            solve(label, start, more="pass"),
            ": > reached.txt",
        ],
    )


def solve(label: str, start: str, lines: str = HEAD, there: str = "and name in pages", more: str = "") -> str:
    """Returns the solution, or one with a fault."""
    follow = FOLLOW.replace("AND_THERE", there).replace("MORE", more or "left.append(name)")
    return python(READ.replace("LINES", lines) + follow.replace("LABEL", repr(label)).replace("START", repr(start)))


def reached(start: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    """Returns the nodes that are reached from one, without it."""
    found: set[str] = set()
    level = {start}
    while level:
        level = {other for name in level for other in edges[name]} - found
        found |= level
    return found - {start}
