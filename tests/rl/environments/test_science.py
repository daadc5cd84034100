"""Quantities with units are compared as quantities, choices as letters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.environment import Reply
from arcforge_core.errors import ConfigError
from arcforge_core.testing.environment_suite import score
from arcforge_rl.configs.environments import ScienceConfig
from arcforge_rl.environments.answers import NoAnswer
from arcforge_rl.environments.quantities import equal_quantities, last_quantity
from arcforge_rl.environments.science import Science, judge_choice


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        ("36 N", (36.0, "N")),
        ("F = m a = 12 kg * 3 m/s^2 = 36 N", (36.0, "N")),
        ("The force is about -3.5e3 kg*m/s^2.", (-3500.0, "kg*m/s^2")),
        ("1,200 J", (1200.0, "J")),
        ("so \\boxed{2.5 \\times 10^{-3}\\,\\text{mol}}", (0.0025, "mol")),
        ("$9.81\\ \\mathrm{m/s^2}$", (9.81, "m/s^2")),
        ("2.5 x 10^-3 m\u00b2", (0.0025, "m^2")),
        ("4 \u03a9", (4.0, "\u03a9")),
        ("36", None),
        ("N", None),
        ("x36 N", None),
        ("", None),
        ("1 2 N", None),
        ("9" * 300 + " N", None),
        ("1e999 N", (1.0, "e999 N")),  # which no unit is, instead of 1e99
        ("\\boxed{1 N} \\boxed{2 N}", None),
    ],
)
def test_quantities_are_read(text, quantity):
    if quantity is None:
        with pytest.raises(NoAnswer):
            last_quantity(Reply(text))
    else:
        value, unit = last_quantity(Reply(text))
        assert (pytest.approx(value), unit) == quantity


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ((36.0, "N"), 1.0),
        ((0.036, "kN"), 1.0),
        ((36.0, "kg*m/s^2"), 1.0),
        ((36.0, "kg m / s^2"), 1.0),
        ((36.3, "newton"), 1.0),
        ((36.5, "N"), 0.0),
        ((36.0, "J"), 0.0),
        ((36.0, "florps"), 0.0),
        ((36.0, "N or 40 N"), 0.0),
        ((36.0, "N^9"), 0.0),
        ((36.0, "(((("), 0.0),
        ((1.0, "e999 N"), 0.0),
        ((36.0, "N and more 12"), 0.0),
        ((36.0, "import os"), 0.0),
        ((float("nan"), "N"), 0.0),
        ((float("inf"), "N"), 0.0),
    ],
)
def test_quantities_are_compared(found, right):
    result = equal_quantities((36.0, "N"), found)
    assert result.value == right and result.reason


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("B", 1.0),
        ("b.", 1.0),
        ("(B)", 1.0),
        ("The answer is B.", 1.0),
        ("**Answer: B**", 1.0),
        ("A is wrong, C too.\nB", 1.0),
        ("\\boxed{B}", 1.0),
        ("C", 0.0),
        ("B or C", 0.0),
        ("AB", 0.0),
        ("not B", 0.0),
        ("B\nC", 0.0),
        ("\\boxed{A} \\boxed{B}", 0.0),
        ("\uff22", 0.0),
        ("", 0.0),
    ],
)
def test_choices(text, right):
    result = judge_choice("B", Reply(text))
    assert result.value == right and result.reason


@pytest.mark.parametrize("kind", ["quantity", "choice"])
def test_every_kind_is_sound(kind):
    environment = Science(ScienceConfig(kinds=[kind]))
    for index in range(8):
        task = environment.task(index)
        assert score(environment, task, environment.oracle(task)).reward == 1.0, task
        if kind == "choice":
            letters = [line[0] for line in task.prompt.splitlines() if line[1:3] == ". "]
            assert task.answer in letters and len(letters) >= 3
            others = [letter for letter in letters if letter != task.answer]
            assert not any(score(environment, task, [Reply(letter)]).reward for letter in others)


@settings(max_examples=15, deadline=None)
@given(number=st.text(alphabet="0123456789.,e-+x^*{} ", max_size=20), unit=st.text(max_size=40))
def test_any_quantity_has_a_score(number, unit):
    environment = Science(ScienceConfig(kinds=["quantity"]))
    found = score(environment, environment.task(0), [Reply(f"{number} {unit}")])
    assert 0.0 <= found.reward <= 1.0 and found.reasons["reward"]


def test_bad_config_is_named():
    with pytest.raises(ConfigError, match=r"environment\.kinds="):
        ScienceConfig(kinds=["essay"])
