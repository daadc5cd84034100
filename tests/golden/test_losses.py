"""The first ten losses of every recipe, attention variant and optimizer are what they were.

A change that is meant to move them: `.venv/bin/python scripts/golden_losses`, and say so in the commit.
"""

import json
from pathlib import Path

import pytest

from support.golden import golden_cases, golden_losses, golden_tokens, mismatches, rounding

GOLDEN = json.loads((Path(__file__).parent / "losses.json").read_text())
LARGE = {
    "experiment=mini": pytest.mark.slow(reason="4M parameters in ten steps"),
    "experiment=small_base": pytest.mark.nightly(reason="23M parameters in ten steps"),
}
CASES = [
    pytest.param(name, marks=[LARGE[name]] if name in LARGE else [])
    for name in GOLDEN["losses"]  # those of `golden_cases`, which composes every recipe: not while tests are collected
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("golden")


def test_every_case_is_golden():
    assert GOLDEN["losses"].keys() == golden_cases().keys()


def test_the_corpus_is_that_of_the_golden_losses(folder):
    assert golden_tokens(folder) == GOLDEN["tokens_sha256"], (
        f"the tokens are others than those of {GOLDEN['versions']}: the golden losses cannot be compared"
    )


@pytest.mark.parametrize("name", CASES)
def test_losses(folder, name):
    overrides = golden_cases()[name]
    found = mismatches(golden_losses(overrides, folder), GOLDEN["losses"][name], rounding(overrides))
    assert not found, "\n".join(found)
