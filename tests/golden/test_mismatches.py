import copy
import hashlib

import pytest

from support.corpora import fixed_texts
from support.golden import RTOL, RTOL_AFTER_FLIP, STEPS, mismatches

WANTED = {"loss": [5.0 - 0.1 * n for n in range(STEPS)], "loads": [[10, 6, 8, 8] for _ in range(STEPS)]}


def changed(step=None, by=0.0, flips=None):
    losses = copy.deepcopy(WANTED)
    if step is not None:
        losses["loss"][step] *= 1 + by
    for at, count in (flips or {}).items():
        losses["loads"][at] = [10 - count, 6 + count, 8, 8]
    return losses


@pytest.mark.parametrize(
    "got",
    [changed(), changed(4, 0.9 * RTOL), changed(4, -0.9 * RTOL), changed(5, 0.9 * RTOL_AFTER_FLIP, flips={5: 1, 6: 9})],
)
def test_rounding_and_what_follows_a_near_tie_pass(got):
    assert mismatches(got, WANTED) == []


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (changed(4, 1.1 * RTOL), "step 5: loss is 4.60005"),
        (changed(4, float("nan")), "step 5: loss is nan"),
        (changed(4, 1.1 * RTOL, flips={5: 1}), "step 5"),
        (changed(6, 1.1 * RTOL_AFTER_FLIP, flips={5: 1}), "step 7"),
        (changed(flips={5: 3}), "step 6: 3 choices of experts differ"),
        ({"loss": WANTED["loss"]}, "the run has"),
        ({**WANTED, "loads": [[16, 16]] * STEPS}, "the run has"),
    ],
)
def test_more_than_that_is_named(got, words):
    (message,) = mismatches(got, WANTED)
    assert message.startswith(words)


def test_fixed_texts_are_fixed(tmp_path):
    files = sorted(fixed_texts(tmp_path).iterdir())
    assert files[0].read_text().splitlines()[:2] == ["# module 0", "def baren(bafo, tormi):"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    assert digest == "4fa905ddc37e2e533ffe1a2025326cd03928d04395ccd1f5fb601673bf95abc0"
