r"""What LaTeX says of an answer around its numbers: inequalities, equations, bases and short forms of macros."""

from __future__ import annotations

import re

INEQUALITY = re.compile(r"[<>]=?|\\(?:leq?|geq?|leqslant|geqslant|lt|gt)(?![a-zA-Z])")
VARIABLE = re.compile(r"[A-Za-z]|\\(?!infty|pi)[a-z]+")
ASSIGNED = re.compile(r"^([A-Za-z](?:_\{?\w+\}?)?)=")
NAMES = re.compile(r"^\s*(?:\\left)?\(([A-Za-z](?:\s*,\s*[A-Za-z])+)(?:\\right)?\)\s*=")
BASE = re.compile(r"\d_\{?(\d+)\}?")
EQUALS = re.compile(r"(?<![<>!:=\\])=")
DIGIT_ARGUMENTS = (
    (re.compile(r"(\\[dtc]?frac)\s*(\d)"), r"\1{\2}"),
    (re.compile(r"(\\[dtc]?frac\{[^{}]*\})\s*(\d)"), r"\1{\2}"),
    (re.compile(r"(\\sqrt)\s*(\d)"), r"\1{\2}"),
)


def long_forms(text: str) -> str:
    r"""Returns an answer in the forms that parsers read: ``\frac{3}{7}`` for ``\frac37``, ``\emptyset``, ``1000``."""
    for short, long in DIGIT_ARGUMENTS:
        text = short.sub(long, text)
    return text.replace(r"\varnothing", r"\emptyset").replace("{,}", "")


def is_solved(text: str) -> bool:
    """Returns whether inequalities say where one variable lies, as ``1 < x < 2``; ``x - 1 > 2`` is still a question."""
    sides = [side.strip() for side in INEQUALITY.split(text)]
    lone = [place for place, side in enumerate(sides) if VARIABLE.fullmatch(side)]
    if len(lone) != 1 or len(sides) not in (2, 3) or (len(sides) == 3 and lone != [1]):
        return False
    name = re.compile(rf"(?<![\\a-zA-Z]){re.escape(sides[lone[0]])}(?![a-zA-Z])")
    return not any(name.search(side) for place, side in enumerate(sides) if place != lone[0])


def differ(reference: str, answer: str) -> bool:
    """Returns whether two answers mean different things though a parser that drops parts of them would not see it.

    They have numbers in different bases, or the reference is an equation of several terms and the answer is not one.
    """
    bases = [set(BASE.findall(text)) for text in (reference, answer)]
    if all(bases) and bases[0] != bases[1]:
        return True
    left, *right = EQUALS.split(reference)
    return bool(right) and bool(re.search(r"\S\s*[-+]", left)) and not EQUALS.search(answer)


def without_names(reference: str, answer: str) -> tuple[str, str]:
    """Returns two answers without ``(x, y) =`` unless both have it with different names."""
    found = NAMES.match(reference), NAMES.match(answer)
    names = [re.sub(r"\s+", "", match[1]) for match in found if match]
    if len(set(names)) > 1:
        return reference, answer
    return NAMES.sub("", reference), NAMES.sub("", answer)


def assigned_to(parts: tuple[str, ...]) -> list[str]:
    """Returns the names in ``x = 1, y = 2`` where all parts have one and they differ; empty for anything else."""
    names = [match[1] for match in map(ASSIGNED.match, parts) if match]
    return names if len(names) == len(parts) == len(set(names)) else []
