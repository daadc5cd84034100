"""What several tries at a problem are worth: one of them, the best of N, the majority."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from arcforge_core.checkers import NUMBER
from arcforge_core.eval.conversations.played import Played
from arcforge_rl.sampling.select import RIGHT

ALL = "all"


def pass_at(k: int, right: int, count: int) -> float:
    """Returns the chance that one of `k` tries is right, drawn from all without putting back (arXiv 2107.03374)."""
    return 1.0 - math.comb(count - right, k) / math.comb(count, k)


def pass_figures(rights: Sequence[int], count: int) -> dict[str, float]:
    """Returns the mean ``pass@k``, powers of 2 and all, from how many of `count` tries at each problem are right."""
    ks = sorted({1, count, *(2**n for n in range(1, count.bit_length()) if 2**n <= count)})
    return {f"pass@{k}": sum(pass_at(k, right, count) for right in rights) / len(rights) for k in ks}


def majority_is_right(tries: Sequence[tuple[Hashable, bool]]) -> bool:
    """Says whether the answer that most tries give is right; of equally frequent ones the first that was given.

    Args:
        tries: what each answers, and whether that is right.
    """
    [(winner, _)] = Counter(answer for answer, _ in tries).most_common(1)
    return next(right for answer, right in tries if answer == winner)


def measure(problems: Sequence[Sequence[Played]]) -> dict[str, float]:
    """Returns figures of problems with equally many tries each: ``pass@k`` for powers of 2 and all, ``maj@N``."""
    count = len(problems[0])
    rights = [sum(one.verdict == RIGHT for one in tries) for tries in problems]
    votes = [[(answer_of(one), one.verdict == RIGHT) for one in tries] for tries in problems]
    majority = sum(map(majority_is_right, votes)) / len(problems)
    return {"problems": len(problems), **pass_figures(rights, count), f"maj@{count}": majority}


def by_source(problems: Sequence[Sequence[Played]]) -> dict[str, dict[str, float]]:
    """Returns the figures of each source, and of all as `ALL`."""
    sources: dict[str, list[Sequence[Played]]] = {}
    for tries in problems:
        sources.setdefault(tries[0].item.source, []).append(tries)
    return {**{source: measure(of) for source, of in sorted(sources.items())}, ALL: measure(problems)}


def answer_of(one: Played) -> tuple[str, ...]:
    """Returns what a try answers: the last number where that is what is judged, else the text."""
    return tuple(
        _last_number(answer.text) if turn.check is not None and turn.check.name == "number" else answer.text.strip()
        for answer, turn in zip(one.answers, one.item.turns, strict=True)
    )


def _last_number(text: str) -> str:
    found: list[str] = NUMBER.findall(text)
    return found[-1].replace(",", "") if found else text.strip()


def figures_of(figures: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Returns rows of a table with a heading."""
    names = list(figures[ALL])
    rows = [
        [source, *(f"{of[name]:,.0f}" if name in ("problems", "kept") else f"{of[name]:.1%}" for name in names)]
        for source, of in figures.items()
    ]
    return [["source", *names], *rows]
