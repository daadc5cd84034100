"""A small corpus of pages that name each other."""

import pytest

from arcforge_rl.search.pages import Page, page_of

NAMES = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "inlet", "kelp", "maple", "onyx", "reed")
PROSE = (
    "This module reads and writes files of its own kind. Call `open_file(path)` to read one line after the other, or "
    "`write_file(path, lines)` to replace all lines of a file; both compress what they write, and both close the file."
)
EXAMPLE = """

>>> double(4)
8
>>> word = str(double(5)) + 'abc'
>>> word
'10abc'
>>> [double(n) for n in range(3)]
[0, 2, 4]
"""


def corpus(number: int = len(NAMES)) -> list[Page]:
    """Returns pages that import later ones, and of which each names its neighbour, in a ring."""
    pages = []
    for place, name in enumerate(NAMES[:number]):
        imports = [*NAMES[place + 1 : place + 4 : 2], "absent"]
        methods = [f"{name}_{verb}" for verb in ("read", "write", "close")[: 1 + place % 3]]
        near = [NAMES[(place + 1) % number]]
        facts = {"Kind": ["module"], "Imports": imports, "Methods": methods, "See also": near}
        pages.append(page_of(name, facts, PROSE, group=f"group{place % 5}"))
    return pages


@pytest.fixture
def pages():
    return corpus()
