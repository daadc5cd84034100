"""Accuracy of several rollouts per problem: one of them, the best of N, the majority."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from arcforge_core.checkers import NUMBER
from arcforge_core.episodes.conversation_tasks import ConversationTask
from arcforge_core.episodes.rollout import Rollout
from arcforge_core.eval.conversations.figures import RIGHT, verdict

ALL = "all"


def pass_at(k: int, right: int, count: int) -> float:
    """Returns the probability that one of `k` rollouts, drawn without replacement, is right (arXiv 2107.03374)."""
    return 1.0 - math.comb(count - right, k) / math.comb(count, k)


def pass_figures(rights: Sequence[int], count: int) -> dict[str, float]:
    """Returns the mean ``pass@k`` for powers of 2 and `count`, from the number of right rollouts of each problem."""
    ks = sorted({1, count, *(2**n for n in range(1, count.bit_length()) if 2**n <= count)})
    return {f"pass@{k}": sum(pass_at(k, right, count) for right in rights) / len(rights) for k in ks}


def majority_is_right(tries: Sequence[tuple[Hashable, bool]]) -> bool:
    """Returns whether the most frequent answer is right; the first one given wins a tie.

    Args:
        tries: answers, and whether each is right.
    """
    [(winner, _)] = Counter(answer for answer, _ in tries).most_common(1)
    return next(right for answer, right in tries if answer == winner)


def measure(problems: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    """Returns figures of problems with N rollouts each: ``pass@k`` for powers of 2 and N, and ``maj@N``."""
    count = len(problems[0])
    rights = [sum(verdict(one) == RIGHT for one in tries) for tries in problems]
    votes = [[(answer_of(one), verdict(one) == RIGHT) for one in tries] for tries in problems]
    majority = sum(map(majority_is_right, votes)) / len(problems)
    return {"problems": len(problems), **pass_figures(rights, count), f"maj@{count}": majority}


def by_source(problems: Sequence[Sequence[Rollout]]) -> dict[str, dict[str, float]]:
    """Returns the figures of each source, and of all as `ALL`."""
    sources: dict[str, list[Sequence[Rollout]]] = {}
    for tries in problems:
        sources.setdefault(tries[0].domain, []).append(tries)
    return {**{source: measure(of) for source, of in sorted(sources.items())}, ALL: measure(problems)}


def answer_of(one: Rollout) -> tuple[str, ...]:
    """Returns the answer of a rollout: the last number if numbers are judged, otherwise the text."""
    if not isinstance(one.task, ConversationTask):
        return (one.episode.reply.text.strip(),)
    return tuple(
        _last_number(answer["text"])
        if question.check is not None and question.check.name == "number"
        else answer["text"].strip()
        for answer, question in zip(one.episode.artefacts["answers"], one.task.questions, strict=True)
    )


def _last_number(text: str) -> str:
    found: list[str] = NUMBER.findall(text)
    return found[-1].replace(",", "") if found else text.strip()


def figures_of(figures: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Returns the rows of a table, including the heading."""
    names = list(figures[ALL])
    rows = [
        [source, *(f"{of[name]:,.0f}" if name in ("problems", "kept") else f"{of[name]:.1%}" for name in names)]
        for source, of in figures.items()
    ]
    return [["source", *names], *rows]
