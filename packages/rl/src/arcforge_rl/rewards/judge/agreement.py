"""How a judge agrees with labelled pairs: agreement, kappa, and its biases."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CHOSEN, REJECTED, TIED = "chosen", "rejected", "tie"


@dataclass(frozen=True)
class LabelledPair:
    """A pair that people judged.

    Attributes:
        prompt: of both replies.
        chosen, rejected: the replies; for a tie in any order.
        tie: whether neither is better.
        author_chosen, author_rejected: who wrote them; empty if unknown.
    """

    prompt: str
    chosen: str
    rejected: str
    tie: bool = False
    author_chosen: str = ""
    author_rejected: str = ""

    @property
    def label(self) -> str:
        """The verdict of the people."""
        return TIED if self.tie else CHOSEN


@dataclass(frozen=True)
class JudgedPair:
    """A judge's scores of a labelled pair.

    Attributes:
        pair: the pair.
        scores: of the chosen reply, each in [0, 1], as often as it was judged; both orders together, where a verdict
            that follows the order is 0.5.
        orders: the score of the chosen reply when it came first, and when it came second; empty for a judge that reads
            one reply at a time.
        missing: verdicts that could not be had.
    """

    pair: LabelledPair
    scores: Sequence[float]
    orders: Sequence[tuple[float, float]] = ()
    missing: int = 0

    @property
    def verdict(self) -> str:
        """The verdict of the mean score."""
        mean = sum(self.scores) / len(self.scores)
        return TIED if mean == 0.5 else CHOSEN if mean > 0.5 else REJECTED


def agreement_figures(judged: Sequence[JudgedPair], own: str = "") -> dict[str, float]:
    """Returns the figures of a judge; those that nothing was measured for are left out.

    - ``agreement``: share of the pairs whose verdict is the label; ``kappa``: Cohen's, over the three verdicts, with
      the replies of a pair in the order of their hashes, so that chance agreement is that of the texts.
    - ``position_bias``: share of the verdicts for whatever came first minus that for whatever came second;
      ``flips``: share that changed with the order.
    - ``length_bias``: how much more often than the labels the verdicts are for the longer reply.
    - ``self_preference``: the same for replies by `own`.
    - ``variance``: mean variance of the scores of a pair; ``failures``: share of the verdicts that are missing.
    """
    valid = [one for one in judged if one.scores]
    total = sum(len(one.scores) + one.missing for one in judged)
    found = {"pairs": float(len(judged)), "failures": sum(one.missing for one in judged) / total if total else 1.0}
    if not valid:
        return found
    found["agreement"] = sum(one.verdict == one.pair.label for one in valid) / len(valid)
    found["kappa"] = kappa(
        [oriented(one.pair, one.verdict) for one in valid], [oriented(one.pair, one.pair.label) for one in valid]
    )
    orders = [order for one in valid for order in one.orders]
    if orders:
        first = sum(a > b for a, b in orders) / len(orders)
        second = sum(a < b for a, b in orders) / len(orders)
        found |= {"position_bias": first - second, "flips": first + second}
    longer = [(sign(len(one.pair.chosen) - len(one.pair.rejected)), one) for one in valid]
    found |= excess("length_bias", longer)
    if own:
        wrote = [((one.pair.author_chosen == own) - (one.pair.author_rejected == own), one) for one in valid]
        found |= excess("self_preference", wrote)
    repeated = [statistics.pvariance(one.scores) for one in valid if len(one.scores) > 1]
    if repeated:
        found["variance"] = sum(repeated) / len(repeated)
    return found


def excess(name: str, sided: Sequence[tuple[int, JudgedPair]]) -> dict[str, float]:
    """Returns how much more often verdicts than labels are for a side: the mean over pairs that have the side.

    Args:
        name: of the figure.
        sided: 1 where the chosen reply is on the side, -1 where the rejected one is, 0 where both or neither.
    """
    points = {CHOSEN: 1.0, TIED: 0.5, REJECTED: 0.0}
    found = [side * (points[one.verdict] - points[one.pair.label]) for side, one in sided if side]
    return {name: sum(found) / len(found)} if found else {}


def sign(number: float) -> int:
    """Returns -1, 0 or 1."""
    return (number > 0) - (number < 0)


def oriented(pair: LabelledPair, verdict: str) -> str:
    """Returns a verdict as one about the two texts in the order of their hashes."""
    if verdict == TIED:
        return TIED
    hashes = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (pair.chosen, pair.rejected)]
    return "one" if (verdict == CHOSEN) == (hashes[0] <= hashes[1]) else "other"


def kappa(one: Sequence[str], other: Sequence[str]) -> float:
    """Returns Cohen's kappa; 0 where chance alone would agree always."""
    agreed = sum(a == b for a, b in zip(one, other, strict=True)) / len(one)
    by_chance = sum(one.count(name) * other.count(name) for name in {*one, *other}) / len(one) ** 2
    return 0.0 if by_chance == 1.0 else (agreed - by_chance) / (1.0 - by_chance)
