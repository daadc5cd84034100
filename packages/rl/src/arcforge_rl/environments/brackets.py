r"""The meaning of brackets in an answer: a set, a tuple or point, an open or closed interval, a list without brackets.

math-verify compares a set with a tuple element by element, and ``(1,2)`` with anything of two elements. Here the
brackets decide, at every depth: ``\{1,2\}`` is a set, in any order; ``(1,2)``, ``[1,2)`` and the like are ordered, and
equal only to the same brackets. A list without brackets, in any order, equals itself and the set. Every element is
matched once, so a repeated one does not replace a missing one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from arcforge_rl.environments.relations import (
    INEQUALITY,
    assigned_to,
    differ,
    is_solved,
    without_names,
)

TOKEN = re.compile(r"\\[{}]|\\[lr]angle|\\(?:begin|end)\{\w+\}|\\[a-zA-Z]+|\\.|.", re.DOTALL)
SIZES = re.compile(r"\\(?:left|right|[bB]ig{1,2}[lr]?)(?![a-zA-Z])|\\[,;:!> ]|~|\$")
NAMED = re.compile(r"^[A-Za-z](?:_\{?\w+\}?)?(?:\([a-z]\))?(?:=|\\in(?![a-z]))(?=[(\[]|\\\{|\\langle)")
THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
JOINED = re.compile(r",?\\text\{,?(?:and|or)\}|;")
OPENING = ("(", "[", r"\{", "{", r"\langle")
CLOSING = (")", "]", r"\}", "}", r"\rangle")
SET = (r"\{", r"\}")
BARE = ("", "")
BUILT = re.compile(r"\||\\mid|:")
"""In braces: a set that is given by a condition."""
RELATION = re.compile(r"[<>]|\\(?:leq?|geq?|leqslant|geqslant|lt|gt|in|cup|cap|setminus|mathbb)(?![a-zA-Z])")
"""In an answer without brackets that may be an interval or a union."""
CLOSED_INFINITY = re.compile(r"\\infty\s*(?:\\right)?\s*\]|\[\s*-\s*\\infty")
SEVERAL = re.compile(r"\\[pm]{2}(?![a-zA-Z])")
"""A sign that gives two values."""


@dataclass(frozen=True)
class Bracketed:
    """Several answers in one.

    Attributes:
        brackets: opening and closing one; two empty texts for a list without brackets, two ``\\cup`` for a union or
            inequalities joined by "or", two ``\\cap`` for those joined by "and".
        parts: the answers in it.
    """

    brackets: tuple[str, str]
    parts: tuple[str, ...]


UNION = (r"\cup", r"\cup")
BOTH = (r"\cap", r"\cap")
UNORDERED = (SET, BARE, UNION, BOTH)


def same_answer(reference: str, answer: str, equal: Callable[[str, str], bool]) -> bool:
    """Returns whether two answers have the same brackets around equal parts.

    Args:
        reference: the right answer, in LaTeX.
        answer: the given answer.
        equal: compares two answers without brackets, or a relation with an interval.
    """
    reference, answer = without_names(reference, answer)
    left, right = grouped(reference), grouped(answer)
    if left is None and right is None:
        return not differ(reference, answer) and equal(reference, answer)
    if left is None or right is None:
        group, other = (left, answer) if left is not None else (right, reference)
        assert group is not None
        if group.brackets in (SET, BARE):
            return bool(SEVERAL.search(other)) and equal(reference, answer)
        interval = len(group.parts) == 2 and not CLOSED_INFINITY.search(reference + answer)
        if left is not None and INEQUALITY.search(answer):  # math-verify wants the inequalities first
            return interval and is_solved(answer) and equal(answer, reference)
        return interval and bool(RELATION.search(other)) and equal(reference, answer)
    if left.brackets != right.brackets and not _alike(left, right):
        return False
    if len(left.parts) != len(right.parts):
        several = left.brackets in (SET, BARE) and SEVERAL.search(reference + answer)
        return bool(several) and equal(reference, answer)
    ordered = left.brackets not in UNORDERED or bool(assigned_to(left.parts)) != bool(assigned_to(right.parts))
    if ordered:
        return all(same_answer(a, b, equal) for a, b in zip(left.parts, right.parts, strict=True))
    rest = list(right.parts)
    for part in left.parts:
        found = next((other for other in rest if other == part or same_answer(part, other, equal)), None)
        if found is None:
            return False
        rest.remove(found)
    return True


def _alike(left: Bracketed, right: Bracketed) -> bool:
    """Returns whether different brackets may mean the same: a set and a list, or inequalities joined by commas."""
    if {left.brackets, right.brackets} == {SET, BARE}:
        return True
    listed = next((group for group in (left, right) if group.brackets == BARE), None)
    joined = {left.brackets, right.brackets} in ({BARE, UNION}, {BARE, BOTH})
    return listed is not None and joined and all(map(INEQUALITY.search, listed.parts))


def grouped(text: str) -> Bracketed | None:
    """Returns the parts of a set, tuple, interval, list or union; None for anything else, as a number in brackets."""
    joints = {word for word in ("or", "and") if re.search(rf"\\text\s*\{{[\s,]*{word}\s*\}}", text)}
    text = re.sub(r"\s+", "", JOINED.sub(",", re.sub(r"\s+", "", SIZES.sub("", text))))
    text = (
        text.replace(r"\lbrace", r"\{")
        .replace(r"\rbrace", r"\}")
        .replace("{,}", "")
        .replace(r"\varnothing", r"\emptyset")
    )
    text = NAMED.sub("", text).rstrip(".")
    unions = _split(text, r"\cup")
    if len(unions) > 1:
        return Bracketed(UNION, tuple(unions))
    tokens: list[str] = TOKEN.findall(text)
    if _encloses(tokens):
        brackets, inner = (tokens[0], tokens[-1]), "".join(tokens[1:-1])
        parts = tuple(_split(inner, ","))
        if brackets == SET:
            return None if not inner or BUILT.search(inner) else Bracketed(SET, parts)
        if len(parts) > 1 or brackets == ("[", "]"):
            return Bracketed(brackets, parts)
        return grouped(inner) if brackets in (("(", ")"), ("{", "}")) else None
    parts = tuple(_split(THOUSANDS.sub(lambda found: found[0].replace(",", ""), text), ","))
    if len(joints) == 1 and all(map(INEQUALITY.search, parts)) and len(parts) > 1:
        return Bracketed(UNION if joints == {"or"} else BOTH, parts)
    return Bracketed(BARE, parts) if len(parts) > 1 else None


def _split(text: str, mark: str) -> list[str]:
    """Returns the parts of a text between marks that are in no brackets."""
    depth, parts = 0, [""]
    for token in TOKEN.findall(text):
        depth += _step(token)
        if token == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _encloses(tokens: list[str]) -> bool:
    """Returns whether the first token is a bracket that the last one closes."""
    depth = 0
    for place, token in enumerate(tokens):
        depth += _step(token)
        if depth == 0:
            return len(tokens) > 1 and tokens[0] in OPENING and tokens[-1] in CLOSING and place == len(tokens) - 1
    return False


def _step(token: str) -> int:
    return (token in OPENING or token.startswith(r"\begin")) - (token in CLOSING or token.startswith(r"\end"))
