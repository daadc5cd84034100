"""Figures of judges with known biases."""

from __future__ import annotations

import random

import pytest

from arcforge_rl.rewards.judge.agreement import JudgedPair, LabelledPair, agreement_figures, kappa


def labelled(count: int) -> list[LabelledPair]:
    draw = random.Random(0)
    pairs = []
    for number in range(count):
        chosen, rejected = (f"{side} {number} " + "x" * draw.randint(1, 30) for side in ("fine", "poor"))
        authors = ("own", "other") if number % 2 else ("other", "own")
        pairs.append(LabelledPair("p", chosen, rejected, number % 10 == 0, *authors))
    return pairs


def test_a_perfect_judge_and_one_that_guesses() -> None:
    draw, pairs = random.Random(1), labelled(2000)
    perfect = [JudgedPair(pair, [0.5 if pair.tie else 1.0] * 2) for pair in pairs]
    found = agreement_figures(perfect, "own")
    assert found["agreement"] == 1.0 and found["kappa"] == 1.0 and found["variance"] == 0.0
    assert found["length_bias"] == 0.0 and found["self_preference"] == 0.0 and found["failures"] == 0.0
    guessed = agreement_figures([JudgedPair(pair, [draw.choice([0.0, 0.5, 1.0])]) for pair in pairs])
    assert abs(guessed["kappa"]) < 0.05 and "variance" not in guessed and "position_bias" not in guessed


def test_biases_are_found() -> None:
    pairs = [pair for pair in labelled(2000) if not pair.tie]
    longer = [JudgedPair(pair, [float(len(pair.chosen) > len(pair.rejected))]) for pair in pairs]
    assert agreement_figures(longer)["length_bias"] > 0.4
    own = agreement_figures([JudgedPair(pair, [float(pair.author_chosen == "own")]) for pair in pairs], "own")
    assert own["self_preference"] == pytest.approx(800 / 1800) and abs(own["length_bias"]) < 0.05
    first = agreement_figures([JudgedPair(pair, [0.5], [(1.0, 0.0)]) for pair in pairs])
    assert first["position_bias"] == 1.0 and first["flips"] == 1.0 and first["agreement"] == 0.0


def test_missing_verdicts_are_counted() -> None:
    pair = labelled(2)[1]
    found = agreement_figures([JudgedPair(pair, [1.0], missing=1), JudgedPair(pair, [], missing=2)])
    assert found["failures"] == 0.75 and found["agreement"] == 1.0
    assert agreement_figures([JudgedPair(pair, [], missing=2)]) == {"pairs": 1.0, "failures": 1.0}


def test_kappa_is_cohens() -> None:
    """The example of 50 proposals: 20 + 15 agreed, 5 and 10 not."""
    one = ["yes"] * 25 + ["no"] * 25
    other = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert kappa(one, other) == pytest.approx(0.4)
    assert kappa(["a"], ["a"]) == 0.0
