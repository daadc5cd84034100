"""Experts as plain data, and the branches that record them."""

import copy
import pickle

import numpy as np
import pytest

from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.experts import dtype_of, experts_json, experts_of

EXPERTS = np.arange(24, dtype=np.int16).reshape(4, 3, 2)


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_they_come_back(dtype: str) -> None:
    given = EXPERTS.astype(dtype)
    found = experts_of(experts_json(given))
    np.testing.assert_array_equal(found, given)
    assert found.dtype == dtype and experts_of(experts_json(given[:0])).shape == (0, 3, 2)
    assert (dtype_of(256), dtype_of(257)) == ("uint8", "int16")


@pytest.mark.parametrize(
    "change", [{"dtype": "float32"}, {"shape": [4, 6]}, {"shape": [4, 3, 3]}, {"data": "%"}, {"shape": None}]
)
def test_other_data_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="experts"):
        experts_of({**experts_json(EXPERTS), **change})


def branch(tokens: int = 6) -> Branch:
    return Branch("b", range(tokens), [False] * tokens, [0.0] * tokens, [-1] * tokens)


def test_a_branch_appends_them_turn_by_turn() -> None:
    one = branch()
    assert one.experts is None and one.routed == 0
    one.route(EXPERTS[:1])
    early, named = one.experts, one.named("n")
    one.route(EXPERTS[1:])
    assert early is not None and len(early) == 1 and one.routed == 4
    np.testing.assert_array_equal(one.experts, EXPERTS)
    named.route(EXPERTS[3:])
    np.testing.assert_array_equal(named.experts, EXPERTS[[0, 3]])
    np.testing.assert_array_equal(one.experts, EXPERTS, "the copy's later ones are not its own")
    with pytest.raises(ValueError, match="read-only"):
        one.experts[0] = 1  # type: ignore[index]


def test_they_belong_to_the_branch() -> None:
    one, other = branch(), branch()
    one.route(EXPERTS)
    assert one != other and pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)
    other.route(EXPERTS)
    assert one == other
    for wrong, said in ((EXPERTS, "8 positions for 6 tokens"), (EXPERTS[:1, :2], r"\(3, 2\), then of \(2, 2\)")):
        with pytest.raises(ValueError, match=said):
            one.route(wrong)
    assert one == other, "nothing was appended"
