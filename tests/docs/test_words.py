"""Words that CONTRIBUTING asks to avoid become fewer, in the pages and in docstrings, those of tests included.

`words.json` holds how often each may occur: a count above fails, and so does one below, until
``python tests/docs/test_words.py --lower`` has written the lower number. It never writes a higher one.
"""

import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CEILINGS = Path(__file__).with_name("words.json")
PAGES = ("README.md", "CONTRIBUTING.md", "conf/README.md", "packages/*/README.md", "docs/**/*.md")
CODE_OF = {
    "docstrings": ("packages/*/src/**/*.py", "examples/**/*.py"),
    "tests": ("tests/**/*.py", "benchmarks/**/*.py"),
}
PLACES = ("docs", *CODE_OF)
GENERATED = "docs/config.md"
LOWER = "python tests/docs/test_words.py --lower"
WORD_LIST = re.compile(r"^## Words$.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
OPENING = r"(?:\A|\n\s*\n|\n\s*(?:[-*#>]+|\d+\.)\s|[.:;|]\s)\s*[#*-]*\s*"
WORDS = {
    "behind": r"\bbehind\b",
    "anew": r"\banew\b",
    "go on": r"\b(?:go|goes|going)\s+on\b",
    "of others": r"\bof\s+others\b",
    "save for": r"\bsave\s+for\b",
    "what is": r"\bwhat\s+is\b",
    "What ... as a subject": OPENING + r"what\s(?![^.|]*\?)",
    "stands for": r"\bstands?\s+(?:for|in|at)\b",
    "is told": r"\b(?:is|are)\s+told\b",
    "so many": r"\bso\s+many\b",
    "at once": r"\bat\s+once\b",
}
"""What is counted, and its pattern; case is ignored, and so are code and the targets of links."""


def occurrences(text):
    """Returns how often each word occurs in prose."""
    prose = CODE.sub("", text)
    return {word: len(re.findall(pattern, prose, re.IGNORECASE)) for word, pattern in WORDS.items()}


def pages():
    """Returns the text of every page that is written by hand, without the list of words itself."""
    files = {file for pattern in PAGES for file in ROOT.glob(pattern)} - {ROOT / GENERATED}
    return {file: WORD_LIST.sub("", file.read_text(encoding="utf-8")) for file in sorted(files)}


def docstrings(source):
    """Returns the docstrings of a module: its own, those of its classes and functions, and those below fields."""
    bodies = [node.body for node in ast.walk(ast.parse(source)) if isinstance(getattr(node, "body", None), list)]
    values = [statement.value for body in bodies for statement in body if isinstance(statement, ast.Expr)]
    return "\n\n".join(v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str))


def counts():
    """Returns the occurrences in all pages, and in all docstrings of the `CODE_OF` places."""
    places = {"docs": list(pages().values())}
    for place, patterns in CODE_OF.items():
        files = sorted(file for pattern in patterns for file in ROOT.glob(pattern))
        places[place] = [docstrings(file.read_text(encoding="utf-8")) for file in files]
    return {place: dict(sum((Counter(occurrences(t)) for t in texts), Counter())) for place, texts in places.items()}


def complaints(counted, ceilings):
    """Returns a line for every count that is not its ceiling; (above, below)."""
    above, below = [], []
    for place, words in ceilings.items():
        for word, ceiling in words.items():
            count = counted[place].get(word, 0)
            if count > ceiling:
                above.append(
                    f"{place}: {word!r} occurs {count} times, {ceiling} at most: CONTRIBUTING says what to write"
                )
            elif count < ceiling:
                below.append(f"{place}: {word!r} occurs {count} times, not {ceiling}: run {LOWER}")
    return above, below


@pytest.fixture(scope="module")
def found():
    return counts()


@pytest.mark.parametrize("place", PLACES)
def test_no_word_occurs_more_often(place, found):
    ceilings = json.loads(CEILINGS.read_text())
    above, below = complaints(found, {place: ceilings[place]})
    assert above == []
    assert below == [], "fewer: lower the ceilings"


def test_every_word_has_a_ceiling():
    ceilings = json.loads(CEILINGS.read_text())
    assert {place: set(words) for place, words in ceilings.items()} == {place: set(WORDS) for place in PLACES}


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("behind", "The page\nBehind it."),
        ("go on", "a run that goes\non"),
        ("of others", "models of others"),
        ("What ... as a subject", "## What is refused\n"),
        ("What ... as a subject", "It ends. What differs is named.\n"),
        ("What ... as a subject", "| a | what it keeps |\n"),
        ("What ... as a subject", "text\n\n- What it keeps\n  and loses"),
        ("stands for", "It stands in the log"),
        ("at once", "At once."),
    ],
)
def test_a_word_is_counted(word, text):
    assert occurrences(text)[word] == 1


@pytest.mark.parametrize(
    "text",
    ["`behind`", "It says\nwhat runs.", "```text\nbehind\n```", "[link](behind.md)", "beside", "What is it for?"],
)
def test_other_text_is_not(text):
    found = occurrences(text)
    assert found["behind"] == 0
    assert found["What ... as a subject"] == 0


def test_docstrings_of_fields_count_and_other_strings_do_not():
    source = 'def f():\n    """One."""\n    return "behind"\n\nclass A:\n    x: int = 0\n    """Anew."""\n'
    assert docstrings(source).split() == ["One.", "Anew."]


def test_both_directions_are_reported():
    above, below = complaints({"docs": {"anew": 3, "behind": 1}}, {"docs": {"anew": 2, "behind": 2}})
    assert len(above) == len(below) == 1
    assert "'anew' occurs 3 times, 2 at most" in above[0]
    assert "--lower" in below[0]


def lower():
    """Writes the present counts as ceilings, or refuses because one of them has risen."""
    counted = counts()
    ceilings = json.loads(CEILINGS.read_text()) if CEILINGS.exists() else {}
    above, _ = complaints(counted, ceilings)
    if above:
        sys.exit("\n".join(["not written, a ceiling never rises:", *above]))
    written = {place: {word: words.get(word, 0) for word in WORDS} for place, words in counted.items()}
    CEILINGS.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--lower"]:
        sys.exit(f"usage: python {sys.argv[0]} --lower")
    lower()
