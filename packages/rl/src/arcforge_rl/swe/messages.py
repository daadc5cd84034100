"""Messages of commits: the class of a change, and what they say of it without its files, lines, places and trailers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

FIX, FEATURE, REFACTOR, OTHER = CLASSES = ("fix", "feature", "refactor", "other")
"""Classes of changes."""
LONGEST = 4000
"""Characters of a text, and half of those of a message that are read."""
FEWEST = 2
"""Words that a message needs besides those of any message; one is enough if it has a name of code."""
PREFIX = re.compile(r"^(?:\[(\w+)\]:?|(\w+)(?:\([^)]*\))?!?:)\s+")
OF_PREFIX = {
    **dict.fromkeys(("fix", "fixes", "fixed", "bug", "bugfix", "hotfix"), FIX),
    **dict.fromkeys(("feat", "feature", "add", "new"), FEATURE),
    **dict.fromkeys(("refactor", "perf", "cleanup"), REFACTOR),
    **dict.fromkeys(
        ("style", "docs", "doc", "test", "tests", "chore", "build", "ci", "revert", "release", "deps"), OTHER
    ),
}
"""Conventional prefix -> class."""
WORDS = (
    (OTHER, r"revert\w*|deprecat\w+|bump\w*|pin|typos?|changelog|readme|documentation|docstrings?|lint\w*|formatt?ing"),
    (FIX, r"fix\w*|bugs?|repair\w*|correct\w*|regression|crash\w*|handl\w+|avoid\w*|prevent\w*|wrong\w*|broken|"
          r"incorrect\w*|ensure\w*"),
    (FEATURE, r"add\w*|support\w*|implement\w*|introduc\w+|allow\w*|new|enabl\w+|provid\w+"),
    (REFACTOR, r"refactor\w*|renam\w+|mov(?:e[sd]?|ing)|clean\w*|simplif\w+|extract\w*|reorgani[sz]\w+|restructur\w+|"
               r"speed|faster|optimi[sz]\w+"),
)  # fmt: skip
"""The first of these words in a title decides."""
OF_TYPOS = re.compile(r"\b(?:fix|correct)\w*\s+(?:(?:a|an|the|some|few|more|minor|small)\s+)*typos?\b", re.IGNORECASE)
OF_TESTS = re.compile(r"\badd\w*\s+(?:(?:a|some|more|missing|unit|the)\s+)*tests?\b", re.IGNORECASE)
MERGE = re.compile(r"^(?:Merge|Merged|Merging) (?:pull request|branch|branches|remote|tag|commit|PR|in|\S+ into)\b.*")
ISSUE = r"(?:(?:fix|clos|resolv)(?:e|es|ed|ing)?|see(?: also)?|refs?|references|issues?|bug|pr|gh|part of)"
NUMBER = r"(?:(?:[\w.-]+/[\w.-]+)?#\d+|gh-\d+)"
TRAILER = re.compile(
    rf"^(?:(?:[\w-]+-by|cc|change-id|pr-url|pull-request|link|git-svn-id|task|ticket|jira|backport|part-of)\s*:|"
    rf"{ISSUE}\s*:?\s*(?:{NUMBER}|https?://\S+|[A-Z]+-\d+)(?:[\s,]+{NUMBER})*\W*$)",
    re.IGNORECASE,
)
REFERENCE = re.compile(
    rf"^{ISSUE}?\s*#?\d+\s*[:-](?:\s+|$)|\s*[(\[]?(?<!\w)(?:{ISSUE}:?\s*)?{NUMBER}[)\]]?", re.IGNORECASE
)
VERSION = re.compile(r"\b(?:versions?|releases?|bump\w*)\b.*\d+\.\d+|^v?\d+\.\d+(?:\.\d+)*\W*$", re.IGNORECASE)
TELLS = re.compile(
    r"https?://|\bwww\.|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b|cherry.picked|\blines?\s+\d+|#L\d+|\w\.\w+:\d+\b|"
    r"^@@ |\bv?\d+\.\d+\.\d+\b|\S@\S+\.\w",
    re.IGNORECASE,
)
"""Links, hashes, lines of files, full versions and addresses."""
IDLE = frozenset(
    re.findall(
        r"\w+",
        """
    a an the of in on to for and or with from by at is it this that as up out into be fix fixes fixed fixing bug bugs
    wip update updates updated test tests testing code minor change changes changed cleanup stuff misc some more
    review comment comments feedback address addresses typo typos small tweak tweaks improve improvement improvements
    refactor refactoring work progress merge branch pull request pr issue final temp tmp initial commit version
    release bump lint format formatting oops again another thing things various all new now add added adds
""",
    )
)
"""Words that describe no change."""
ITEM = re.compile(r"^\s*(?:[-*+•]|\d+[.)])\s+")
SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`\"'(*\d])")


def class_of(message: str) -> str:
    """Returns the class of a change by its message; empty if that says nothing of it."""
    title = next((line for line in _lines(message)), "")
    known, title = _prefix(title)
    if known:
        return known
    if OF_TYPOS.search(title) or VERSION.search(title):
        return OTHER
    title = OF_TESTS.sub("", title)
    places = [(found.start(), name) for name, words in WORDS if (found := re.search(rf"\b(?:{words})\b", title, re.I))]
    return min(places)[1] if places else ""


def class_by_tests(failed: Collection[str], names: Collection[str]) -> str:
    """Returns the class of a change by its effect.

    Args:
        failed: tests of before the change that ran there with the later expectations, and failed.
        names: that the change adds and tests need.
    """
    return FEATURE if names and not failed else FIX


def text_of(message: str, secret: Collection[str]) -> str:
    """Returns the sentences of a message that describe a change; empty if they are too few to do so.

    Args:
        message: of a commit.
        secret: files and lines of the repair; a sentence that has one is left out.
    """
    hidden = {" ".join(part.split()) for part in secret}
    kept: list[str] = []
    size = 0
    for unit in _units(message):
        said = [one for sentence in SENTENCE.split(unit) if (one := _cleared(sentence, hidden))]
        text = " ".join(said)
        size += len(text) + 2
        if text and size <= LONGEST:
            kept.append(text)
    words = re.findall(r"[^\W\d_]{2,}", " ".join(kept).lower())
    least = 1 if re.search(r"\w\(\)|\w_\w|`\w", " ".join(kept)) else FEWEST
    return "\n\n".join(kept) if len({*words} - IDLE) >= least else ""


def _lines(message: str) -> list[str]:
    """Returns the lines of a message that are no merge's and no trailer, without those before the title."""
    text = "".join(char for char in message[: 2 * LONGEST] if char.isprintable() or char in "\n\t")
    lines = [line.rstrip() for line in text.split("\n") if not MERGE.match(line) and not TRAILER.match(line.strip())]
    return lines[next((number for number, line in enumerate(lines) if line), len(lines)) :]


def _prefix(title: str) -> tuple[str, str]:
    """Returns the class that a conventional prefix names, and the title without it."""
    found = PREFIX.match(title)
    known = OF_PREFIX.get((found[1] or found[2]).lower(), "") if found else ""
    return known, title[found.end() :] if found and known else title


def _units(message: str) -> Iterator[str]:
    """Yields title, paragraphs and items of lists, each as one line."""
    title, *lines = _lines(message) or [""]
    yield _prefix(title)[1]
    unit: list[str] = []
    for line in [*lines, ""]:
        if unit and (not line or ITEM.match(line)):
            yield " ".join(unit)
            unit = []
        if line:
            unit.append(line.strip())


def _cleared(sentence: str, hidden: Collection[str]) -> str:
    """Returns a sentence without references to issues; empty if it must not be said."""
    text = " ".join(REFERENCE.sub("", sentence).split())
    if any(part in one for part in hidden for one in (text, " ".join(sentence.split()))):
        return ""
    idle = TELLS.search(sentence) or VERSION.search(sentence) or not re.search(r"[^\W\d_]{2,}", text)
    return "" if idle else text
