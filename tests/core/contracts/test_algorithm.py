"""Branches: appended to and checked once, read-only for training."""

import copy
import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.contracts.algorithm import Branch, Trace


def spoken() -> Branch:
    branch = Branch("b")
    branch.read([5, 6])
    branch.sample([7, 8], [-0.5, 5e-4], [3, 4])
    branch.read([9])
    return branch


def test_turns_are_appended() -> None:
    branch = spoken()
    assert branch == Branch(
        "b", [5, 6, 7, 8, 9], [False, False, True, True, False], [0, 0, -0.5, 0, 0], [9, 9, 3, 4, 9]
    )
    assert branch.as_row() == {
        "ids": [5, 6, 7, 8, 9],
        "sampled": [False, False, True, True, False],
        "logprobs": [0.0, 0.0, -0.5, 0.0, 0.0],
        "versions": [-1, -1, 3, 4, -1],
    }
    assert (len(branch), branch.num_sampled, branch.oldest_version) == (5, 2, 3)
    assert torch.equal(branch.index_T, torch.tensor([2, 3]))
    json.dumps(branch.as_row())


@pytest.mark.parametrize("name", ["ids", "sampled", "logprobs", "versions"])
def test_arrays_are_read_only_and_keep_their_length(name: str) -> None:
    branch = spoken()
    column = getattr(branch, name)
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1
    before = column.tolist()
    branch.sample([1] * 100, [-1.0] * 100, [0] * 100)
    assert column.tolist() == before and len(getattr(branch, name)) == 105


def test_a_renamed_branch_copies_nothing_and_grows_alone() -> None:
    branch = spoken()
    branch.streams["x"] = torch.zeros(5)
    other = branch.named("c")
    assert other.branch_id == "c" and not other.streams and np.shares_memory(other.ids, branch.ids)
    branch.read([1])
    other.read([2])
    other.sample([3], [-1.0], [1])
    assert branch.ids.tolist() == [5, 6, 7, 8, 9, 1] and other.ids.tolist() == [5, 6, 7, 8, 9, 2, 3]
    assert (branch.oldest_version, other.oldest_version) == (3, 1)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda branch: pickle.loads(pickle.dumps(branch))])
def test_copies_are_equal_and_have_no_spare_room(again) -> None:
    branch = spoken()
    other = again(branch)
    assert other == branch and other != spoken().named("c")
    other.read([1])
    assert other.ids.tolist() == [*branch.ids.tolist(), 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([1], [True], [math.nan], [0]), "token 5 was sampled with log-probability nan"),
        (([1], [True], [-math.inf], [0]), "log-probability -inf"),
        (([1], [True], [0.01], [0]), "log-probability 0.01"),
        (([1, 1], [True, True], [-1.0, -1.0], [0, -1]), "token 6 was sampled with version -1"),
        (([1], [True], [], [0]), "have lengths"),
    ],
)
def test_what_is_refused_leaves_the_branch_as_it_was(columns, message: str) -> None:
    branch = spoken()
    with pytest.raises(ValueError, match=message):
        branch.extend(*columns)
    assert branch == spoken() and branch.num_sampled == 2


def test_the_first_token_is_read() -> None:
    with pytest.raises(ValueError, match="first token must not be sampled"):
        Branch("b").sample([1], [-1.0], [0])


def test_log_probabilities_of_read_tokens_do_not_matter() -> None:
    assert Branch("b", [1], [False], [math.nan], [7]).as_row()["logprobs"] == [0.0]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=20))
def test_any_turns_give_the_columns_of_their_sum(turns: list[tuple[bool, int]]) -> None:
    branch, ids, sampled = Branch("b", [0], [False], [0.0], [-1]), [0], [False]
    for number, (mine, count) in enumerate(turns):
        tokens = [number] * count
        branch.sample(tokens, [-1.0] * count, [number] * count) if mine else branch.read(tokens)
        ids += tokens
        sampled += [mine] * count
    assert branch.ids.tolist() == ids and branch.sampled.tolist() == sampled
    assert branch.num_sampled == sum(sampled)
    assert branch.oldest_version == min(branch.versions[branch.sampled].tolist(), default=-1)


def test_a_trace_is_as_old_as_its_oldest_token() -> None:
    later = Branch("c", [1, 2], [False, True], [0.0, -1.0], [-1, 2])
    silent = Branch("d", [1], [False], [0.0], [-1])
    assert Trace("t", "g", "r", [spoken(), later, silent], {"reward": 0.0}).oldest_version == 2
    assert Trace("t", "g", "r", [silent], {"reward": 0.0}).oldest_version == -1
