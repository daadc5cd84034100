"""Procedural mathematics: answers are right, and endless ones are given up."""

import re
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.environment import Reply
from arcforge_core.errors import ConfigError
from arcforge_core.testing.environment_suite import score
from arcforge_rl.configs.environments import MathConfig
from arcforge_rl.environments.math import Math
from arcforge_rl.problems.problem import HELDOUT, TRAIN, side


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(2, 3))
def test_answers_are_right(index, digits, steps):
    task = Math(MathConfig(kinds=["arithmetic", "expressions"], digits=digits, steps=steps)).task(index)
    expression = re.search(r"[\d(][\d ()+*-]*[\d)]", task.prompt)
    assert eval(expression[0].replace(" ", "")) == int(task.answer)


@given(st.integers(0, 10**6))
def test_fractions_are_right(index):
    task = Math(MathConfig(kinds=["fractions"])).task(index)
    a, b, sign, c, d = re.search(r"(\d+)/(\d+) ([-+*]) (\d+)/(\d+)", task.prompt).groups()
    left, right = Fraction(int(a), int(b)), Fraction(int(c), int(d))
    assert Fraction(task.answer) == {"+": left + right, "-": left - right, "*": left * right}[sign]


@given(st.integers(0, 10**6))
def test_roots_are_roots(index):
    task = Math(MathConfig(kinds=["quadratics"])).task(index)
    polynomial = re.search(r"x\^2.* = 0", task.prompt)[0].split(" = ")[0].replace("^", "**")
    polynomial = re.sub(r"(\d)x", r"\1*x", polynomial)
    roots = [int(root) for root in task.answer.split(", ")]
    assert len(set(roots)) == 2 and [eval(polynomial, {"x": root}) for root in roots] == [0, 0]


def test_the_split_is_that_of_the_conversations():
    for split, wanted in (("train", TRAIN), ("heldout", HELDOUT)):
        environment = Math(MathConfig(kinds=["arithmetic"], split=split))
        for index in range(50):
            low, high = sorted(map(int, re.findall(r"\d+", environment.task(index).prompt)))
            assert side("arithmetic", f"{low},{high}") == wanted


@pytest.fixture(scope="module")
def quadratic():
    environment = Math(MathConfig(kinds=["quadratics"]))
    return environment, environment.task(0)


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{9^{9^{9^{9}}}}",
        r"\boxed{10000000!!}",
        r"\boxed{\sum_{n=1}^{10^{12}} n!}",
        r"\boxed{x^{999999999999} = 1}",
        r"\boxed{(1+x)^{100000}}",
        r"\boxed{\int_0^1 x^{x^{x^x}} dx}",
        r"\boxed{" + "{" * 15 + "1" + "}" * 15 + "}",
        r"\boxed{\frac{\frac{\frac{1}{0}}{0}}{0}}",
        "\\boxed{\0}",
    ],
)
def test_endless_answers_score_nothing_in_bounded_time(quadratic, text):
    environment, task = quadratic
    start = time.monotonic()
    found = score(environment, task, [Reply(text)])
    assert found.reward == 0.0 and found.reasons["reward"]
    assert time.monotonic() - start < 30


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet=st.sampled_from("\\frac{}sqrt^_0123456789x+-*/()[],=!&infty leftright|"), max_size=60))
def test_any_formula_has_a_score(quadratic, text):
    environment, task = quadratic
    found = score(environment, task, [Reply(rf"\boxed{{{text}}}")])
    assert 0.0 <= found.reward <= 1.0 and found.reasons["reward"]


def test_roots_may_stand_in_any_order(quadratic):
    environment, task = quadratic
    first, second = task.answer.split(", ")
    assert score(environment, task, [Reply(rf"So \boxed{{{second}, {first}}}.")]).reward == 1.0
    assert score(environment, task, [Reply(rf"\boxed{{{first}}}")]).reward == 0.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kinds", []),
        ("kinds", ["sums"]),
        ("digits", 0),
        ("steps", 4),
        ("largest", 1),
        ("seed", -1),
        ("split", "test"),
    ],
)
def test_bad_config_is_named(field, value):
    with pytest.raises(ConfigError, match=rf"environment\.{field}="):
        MathConfig(**{field: value})
