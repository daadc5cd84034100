"""An index of labelled lines, some of which name a value twice; some prose has a decoy."""

from __future__ import annotations

import random
from collections.abc import Sequence

from arcforge_rl.search.pages import Page
from arcforge_rl.terminal.authoring.pages.drawing import ALL, FORMAT, HEAD, READ, Unfit, described, files_of
from arcforge_rl.terminal.drafts import Draft, python, rule

WRITE = """
import csv
label = LABEL
rows = []
for title, facts in pages.items():
    if label in facts:
        values = VALUES
        rows.append([title, len(values), max(sorted(values), key=len)])
rows.sort(key=lambda row: ORDER)
with open("index.csv", "w", newline="") as file:
    csv.writer(file, lineterminator="\\n").writerows([["title", "count", "longest"], *rows])
"""
ONCE, TWICE = "set(facts[label])", "facts[label]"
BY_COUNT, BY_TITLE = "(-row[1], row[0])", "row[0]"
FEWEST_ROWS = 4


def draw(draw: random.Random, pages: Sequence[Page]) -> Draft:
    """Draws a label that several pages have, some of them with several values."""
    pages = described(pages)
    labels = sorted({label for page in pages for label in page.facts})
    fitting = [label for label in labels if _fits(rows_of(pages, label))]
    if not fitting:
        raise Unfit("no label has several values on several pages")
    label = draw.choice(fitting)
    having, rows = [page for page in pages if label in page.facts], rows_of(pages, label)
    repeated = draw.choice(having)
    value = draw.choice(repeated.facts[label])
    lines = {repeated.title: f"{label}: {'; '.join([*repeated.facts[label], value])}"}
    notes = {draw.choice(having).title: f"{label}: {'-'.join(page.title for page in pages[:3])}"}
    instruction = f"""{FORMAT}
Write `/app/index.csv` with the header `title,count,longest` and one row for each page that has a line of the label
`{label}`: its title, the number of different values of that line, and the longest of them; of several longest ones, the
first one in the order of code points. Rows with a larger count come first, those with the same count in the order of
the code points of their titles.
"""
    return Draft(
        instruction,
        files_of(draw, pages, notes, lines),
        [rule("rows", "index.csv", rows=[["title", "count", "longest"], *rows])],
        solve(label),
        [solve(label, lines=ALL), solve(label, values=TWICE), solve(label, order=BY_TITLE), "touch index.csv"],
    )


def rows_of(pages: Sequence[Page], label: str) -> list[list[str]]:
    """Returns the rows of the wanted table."""
    values = {page.title: sorted(page.facts[label]) for page in pages if label in page.facts}
    rows = [[title, str(len(own)), max(own, key=len)] for title, own in values.items()]
    return sorted(rows, key=lambda row: (-int(row[1]), row[0]))


def _fits(rows: Sequence[Sequence[str]]) -> bool:
    """Returns whether a table takes more than a list of titles."""
    return len(rows) >= FEWEST_ROWS and int(rows[0][1]) >= 3 and [row[0] for row in rows] != sorted(r[0] for r in rows)


def solve(label: str, lines: str = HEAD, values: str = ONCE, order: str = BY_COUNT) -> str:
    """Returns the solution, or one with a fault."""
    write = WRITE.replace("VALUES", values).replace("ORDER", order).replace("LABEL", repr(label))
    return python(READ.replace("LINES", lines) + write)
