"""Scorers that evaluate the answer as Python never see what could run, or what never ends."""

import sys

import pytest

from arcforge_core.errors import ConfigError
from arcforge_rl.problems.puzzle_checker import HARMLESS, evaluates, full_marks, puzzle

reasoning_gym = pytest.importorskip("reasoning_gym")
EVALUATING = ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens", "countdown", "simple_integration",
              "intermediate_integration", "polynomial_multiplication")  # fmt: skip
MARK = "__import__('sys').modules.setdefault('paid_for_code', 1)"
ATTACKS = (
    MARK,
    f"[{MARK}]",
    f"0*{MARK}",
    f"S({MARK!r})",
    f"(S)({MARK!r})",
    f"[S][0]({MARK!r})",
    f"exp({MARK!r})",
    f"exec({MARK!r})",
    f"exec\\\n({MARK!r})",
    MARK.replace("__import__", "\uff3f\uff3fimport\uff3f\uff3f"),
    f"[0 for x in [{MARK}]]",
    "[0 for entry['answer'] in ['9']]",
    f"(lambda: {MARK})()",
    f"f'{{{MARK}}}'",
)


@pytest.mark.parametrize("name", EVALUATING)
def test_no_scorer_runs_an_answer(name):
    made, entry = puzzle(name, 5, 0)
    assert evaluates(type(made).score_answer)
    assert full_marks(made, entry, entry["answer"])
    before = dict(entry)
    for attack in ATTACKS:
        assert full_marks(made, entry, attack) is False
        assert "paid_for_code" not in sys.modules, attack
    assert entry == before


@pytest.mark.parametrize("attack", ATTACKS)
def test_code_is_not_harmless(attack):
    assert not HARMLESS.fullmatch(attack)


@pytest.mark.parametrize(
    "text",
    ["12*3 - (4 + 5)/2.0", "3*x**2 + exp(-x)*sin(x) + C", "['A', 'B']", "[[1, 0], [0, 1]]", "_ Q _\nQ _ _", "x - pi"],
)
def test_answers_of_people_are_harmless(text):
    assert HARMLESS.fullmatch(text)


@pytest.mark.parametrize("text", ["9**9**9**9", "2**(10**9)", "10**1000000", "1" * 1990 + "!", "(" * 1990])
def test_endless_numbers_are_refused_in_little_time(text):
    made, entry = puzzle("countdown", 5, 0)
    assert full_marks(made, entry, text) is False


def test_a_scorer_that_does_not_check_the_numbers_is_refused():
    with pytest.raises(ConfigError, match="any four numbers"):
        puzzle("puzzle24", 0, 0)
