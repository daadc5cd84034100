"""Examples of a documentation, some of which show what Python does not print.

Whether the other examples hold is not known here: the solution runs them all, so that the validator refuses pages whose
own examples are out of date.
"""

from __future__ import annotations

import doctest
import random
import re
from collections.abc import Sequence

from arcforge_rl.search.pages import KIND, Page
from arcforge_rl.terminal.authoring.pages.drawing import Unfit
from arcforge_rl.terminal.drafts import Draft, python, rule

FEWEST = 3
"""Examples of a page with output that can be changed."""
UNSTABLE = re.compile(r"Traceback|\.\.\.|\b0x|random|time|file|open\(|socket", re.IGNORECASE)
CHANGED = re.compile(r"\d|(?<=\w)[a-y](?=\w)")
SOLVE = """
import doctest, importlib, json, pathlib
lines = []
class Quiet(doctest.DocTestRunner):
    def report_failure(self, out, test, example, got):
        lines.append(example.lineno + FIRST)
    def report_unexpected_exception(self, out, test, example, error):
        lines.append(example.lineno + FIRST)
wrong = {}
for path in sorted(pathlib.Path("docs").glob("*.txt")):
    text = path.read_text()
    module = importlib.import_module(text.splitlines()[0].removeprefix("Module: "))
    test = doctest.DocTestParser().get_doctest(text, dict(vars(module)), path.name, path.name, 0)
    lines.clear()
    Quiet(verbose=False).run(test, out=lambda text: None)
    if lines:
        wrong[path.name] = sorted(lines)
json.dump(wrong, open("wrong.json", "w"))
"""


def draw(draw: random.Random, pages: Sequence[Page]) -> Draft:
    """Draws examples whose shown output is changed, on the first page and on others with examples."""
    files: dict[str, str | bytes] = {}
    wrong: dict[str, list[int]] = {}
    every: dict[str, list[int]] = {}
    for page in pages:
        text = f"Module: {module_of(page)}\n\n{page.prose}\n"
        try:
            examples = [one for one in doctest.DocTestParser().get_examples(text) if one.want]
        except ValueError:
            examples = []  # an example without a blank after its prompt
        fitting = [one for one in examples if CHANGED.search(one.want)]
        stable = not UNSTABLE.search("".join(one.source + one.want for one in examples))
        if len(fitting) < FEWEST or not stable:
            if page is pages[0]:
                raise Unfit("it has too few examples whose output can be changed")
            continue
        name, lines = f"{page.title}.txt", text.split("\n")
        chosen = draw.sample(fitting, draw.randint(1, min(3, len(fitting) - 1)))
        for one in chosen:
            place = one.lineno + one.source.count("\n")
            line = next(number for number in range(place, len(lines)) if CHANGED.search(lines[number]))
            lines[line] = CHANGED.sub(_other, lines[line], count=1)
        files[f"docs/{name}"] = "\n".join(lines)
        wrong[name] = sorted(one.lineno + 1 for one in chosen)
        every[name] = [one.lineno + 1 for one in examples]
    instruction = """
Each file in `/app/docs` documents a part of the Python module that its first line names. Some of its examples (`>>>`)
show an output that Python does not print. Write to `/app/wrong.json` a JSON object that maps the name of each file with
such examples to the sorted list of the numbers of their lines, from 1: the lines with `>>>`. Files without any are left
out.

The examples of a file run in their order in one session, in which all names of the module are defined, and outputs are
compared as by Python's `doctest` without further options.
"""
    everything = f"import json\njson.dump({every!r}, open('wrong.json', 'w'))"
    return Draft(
        instruction,
        files,
        [rule("json", "wrong.json", value=wrong)],
        solve(),
        [python(everything), solve(first="0"), "echo '{}' > wrong.json"],
    )


def module_of(page: Page) -> str:
    """Returns the name of the module that a page is about, or in which what it is about is defined."""
    return page.title if page.facts.get(KIND) == ("module",) else page.facts.get("Defined in", (page.title,))[0]


def _other(found: re.Match[str]) -> str:
    return chr(ord(found[0]) + 1) if found[0] != "9" else "8"


def solve(first: str = "1") -> str:
    """Returns the solution, or one that counts lines from another number."""
    return python(SOLVE.replace("FIRST", first))
