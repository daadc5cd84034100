"""Scorers that evaluate the answer as Python never see what could run, or what never ends."""

import resource
import sys
import time

import pytest

from arcforge_core.errors import ConfigError
from arcforge_core.testing.cheats import cheats_for
from arcforge_rl.configs.commands import ReasoningGymCheckerConfig
from arcforge_rl.problems import puzzle_checker
from arcforge_rl.problems.bounded import is_bounded
from arcforge_rl.problems.puzzle_checker import (
    HARMLESS,
    NUMBERS,
    REFUSED,
    ReasoningGymChecker,
    evaluates,
    full_marks,
    puzzle,
    question_hash,
    spoilt_numbers,
)

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


def checker_of(name, index=0):
    _, entry = puzzle(name, 11, index)
    arguments = {"dataset": name, "seed": 11, "index": index, "question": question_hash(entry)}
    return ReasoningGymChecker(ReasoningGymCheckerConfig(**arguments)), entry


@pytest.mark.parametrize("name", ["complex_arithmetic", "number_sorting", "coin_flip"])
def test_no_number_is_close_to_every_answer(name):
    """Their scorers give full marks to NaN, to numbers off by one, and to the first digit."""
    for index in range(3):
        made, entry = puzzle(name, 11, index)
        assert full_marks(made, entry, entry["answer"])
        for junk in (*NUMBERS, *spoilt_numbers(entry["answer"])):
            assert junk.strip() == entry["answer"].strip() or not full_marks(made, entry, junk), junk


@pytest.mark.nightly(reason="builds every dataset of reasoning-gym")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", sorted(set(reasoning_gym.factory.DATASETS) - {*REFUSED, "composite"}))
def test_no_dataset_pays_for_a_cheat(name):
    try:
        made, entry = puzzle(name, 12, 1)
    except ConfigError as error:  # its scorer does not accept its own answer
        assert "does not accept its own answer" in str(error)
        return
    texts = [cheat.text for cheat in cheats_for(entry["question"], entry["answer"])]
    junk = [text for text in (*texts, *NUMBERS, *spoilt_numbers(entry["answer"])) if text.strip() != entry["answer"]]
    assert [text for text in junk if full_marks(made, entry, text)] == []


@pytest.mark.parametrize(
    ("text", "bounded"),
    [
        ("[0]*99*99*99*99*9", False),
        ("'a'*99*99*99*99", False),
        ("9**(9*9*9*9*9*9*9*9)", False),
        ("9**-(9**9)", False),
        ("9**+999999999", False),
        ("9**sqrt(99*99*99*99)", False),
        ("9**(9/0.0001)", False),
        ("1" * 1990 + "!", False),
        ("[[1, 0], [-1, 'a']]", True),
        ("x**(1/2) - 3*x**-2*exp(2*x)", True),
        ("(58 + 39)*2**7", True),
        ("2**x", True),
    ],
)
def test_what_may_be_evaluated(text, bounded):
    assert is_bounded(text) == bounded


@pytest.mark.slow(reason="starts a process that imports reasoning-gym")
@pytest.mark.parametrize("name", ["binary_matrix", "countdown", "intermediate_integration"])
@pytest.mark.parametrize("text", ["[0]*99*99*99*9*9", "9**(9*9*9*9*9*9*9*9)", "'a'*99*99*99*99*9"])
def test_a_few_characters_take_neither_time_nor_memory(name, text):
    checker, _ = checker_of(name)
    checker.check("(1)")  # the process has started
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    assert checker.check(text) is False
    assert time.process_time() - start < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


@pytest.mark.slow(reason="starts a process that imports reasoning-gym")
def test_a_scorer_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(puzzle_checker, "SECONDS", 0.5)
    checker, _ = checker_of("intermediate_integration")
    start = time.process_time()
    assert checker.check("((x+1)**99+(y+1)**99)*((x+2)**99)") is False
    assert time.process_time() - start < 1.0


@pytest.mark.slow(reason="starts a process that imports reasoning-gym")
def test_another_form_of_a_right_answer_passes():
    checker, entry = checker_of("countdown")
    assert checker.check(f"({entry['answer']})") is True
    assert checker.check(f"{entry['answer']} + 1") is False
