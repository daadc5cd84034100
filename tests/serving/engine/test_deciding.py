"""How many drafts are made, with steps whose costs and gains are made up."""

import random

import pytest

from arcforge_serving.engine.speculation import Speculation


def run(speculation, steps, seconds, shares, sequences=1, seed=0, noise=0.0):
    """Goes through steps; returns the drafts of each, and tokens and seconds in all."""
    rng, made, last, tokens, time = random.Random(seed), [], 0, 0, 0.0
    for _ in range(steps):
        drafts = speculation.choose(sequences)
        took = seconds[drafts] * (1 + noise * rng.random())
        time += took
        accepted = next((n for n in range(last) if rng.random() > shares[n]), last)
        if last:
            for _ in range(sequences):
                speculation.count(last, accepted)
        tokens += 1 + accepted
        if made and drafts == last == made[-1]:
            speculation.took(sequences, drafts, took)
        made.append(drafts)
        last = drafts
    return made, tokens, time


COSTS = [1.0, 1.4, 1.75, 2.1]


@pytest.mark.parametrize(
    ("shares", "best"),
    [((0.95, 0.95, 0.95), 3), ((0.8, 0.1, 0.1), 1), ((0.1, 0.1, 0.1), 0), ((0.9, 0.9, 0.05), 2)],
    ids=["all", "one", "none", "two"],
)
def test_as_many_as_pay_are_drafted(shares, best):
    made, *_ = run(Speculation(3, True), 2000, COSTS, shares, noise=0.2)
    later = made[500:]
    assert later.count(best) > 0.9 * len(later)
    assert set(made) > {best}  # the others were tried


def test_where_it_loses_little_is_lost():
    """Against not drafting at all, trials included, from the first step on."""
    _, tokens, time = run(Speculation(3, True), 1000, [1.0, 1.6, 2.2, 2.8], (0.2, 0.1, 0.1), noise=0.1)
    plain = 1.05 * tokens
    assert time < 1.05 * plain


def test_it_is_tried_again_and_noticed_when_it_pays():
    speculation = Speculation(2, True)
    made, *_ = run(speculation, 600, COSTS, (0.0, 0.0))
    assert made[-1] == 0
    made, *_ = run(speculation, 4000, COSTS, (1.0, 1.0), seed=1)
    assert made[-100:].count(2) > 80


def test_numbers_of_sequences_are_decided_apart():
    """Eight cost more than they give, one does not."""
    speculation = Speculation(1, True)
    for turn in range(20):
        one, *_ = run(speculation, 40, [1.0, 1.2], (0.9,), seed=turn)
        eight, *_ = run(speculation, 40, [1.0, 2.5], (0.9,), sequences=8, seed=turn)
    assert one.count(1) > 30 and eight.count(0) > 30


def test_several_sequences_try_late_and_win_all_the_same():
    """A batch of 128 tokens pays for no trials; where drafts pay, a long one finds out."""
    made, *_ = run(Speculation(3, True), 128, COSTS, (0.9, 0.9, 0.9), sequences=4)
    assert set(made[:127]) == {0}
    made, *_ = run(Speculation(3, True), 3000, COSTS, (0.95, 0.95, 0.95), sequences=4)
    assert made[-500:].count(3) > 450
    _, tokens, time = run(Speculation(3, True), 1000, [1.0, 1.6, 2.2, 2.8], (0.3, 0.1, 0.1), sequences=4, noise=0.1)
    assert time < 1.03 * 1.05 * tokens


def test_always_drafts_all():
    made, *_ = run(Speculation(3, False), 50, COSTS, (0.0, 0.0, 0.0))
    assert made == [3] * 50
    assert Speculation(0, True).choose(4) == 0


def test_counts_are_of_places():
    speculation = Speculation(3, True)
    for drafts, accepted in ((3, 2), (3, 0), (1, 1)):
        speculation.count(drafts, accepted)
    assert speculation.checked == {3: 2, 1: 1}
    assert speculation.accepted == [2, 1, 0]
    assert speculation.length(0) == 1.0
    assert 1.6 < speculation.length(1) < 1.7
    assert 2.0 < speculation.length(3) < 2.2
