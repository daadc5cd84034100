"""Everyday questions: right results, working that ends in them, calls for arithmetic only, wordings as people type."""

import random
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_rl.problems.everyday import (
    SORRY,
    TALK,
    Everyday,
    EverydayCalculator,
    small_talk,
    three_numbers,
    two_numbers,
)
from arcforge_rl.problems.toolbox import calculator
from arcforge_rl.sandbox.sync import Desk

seeds = st.integers(0, 2**32)


def exactly(expression: str) -> Fraction:
    """Returns the value of an expression by Python's own grammar, without the product's code."""
    return Fraction(eval(re.sub(r"\d+", r"Fraction(\g<0>)", expression)))


@given(seeds, st.booleans())
def test_value_and_working_agree_with_the_expression(seed: int, three: bool) -> None:
    draw = random.Random(seed)
    problem = three_numbers(draw) if three else two_numbers(draw, (1, 2, 3, 5))
    assert exactly(problem.expression) == problem.value
    assert problem.working.endswith(f"= {problem.value}")
    for line in problem.working.splitlines():
        parts = [exactly(part) for part in line.split(" = ")]
        assert len(set(parts)) == 1, "each line is a chain of equals"
    assert Fraction(calculator(problem.expression).removesuffix(".0")) == problem.value


@given(seeds)
def test_an_expression_in_words_or_spaces_names_the_same_numbers(seed: int) -> None:
    draw = random.Random(seed)
    problem = two_numbers(draw, (1, 2))
    symbols = problem.written
    for name, sign in (
        ("plus", "+"),
        ("minus", "-"),
        ("multiplied by", "*"),
        ("times", "*"),
        ("x", "*"),
        ("divided by", "/"),
    ):
        symbols = symbols.replace(name, sign)
    assert symbols.replace(" ", "") == problem.expression
    assert problem.operands == ",".join(
        sorted(problem.expression.replace(symbols.strip("0123456789 "), " ").split(), key=int)
    )


@given(seeds)
def test_small_talk_has_one_of_four_replies_and_no_empty_text(seed: int) -> None:
    problem = small_talk(random.Random(seed))
    question, reply = problem.solve(None)  # type: ignore[arg-type,misc]
    assert question["content"].strip() and "{" not in question["content"]
    assert reply["content"] in {text for _, text, _ in TALK}
    assert reply["reasoning_content"]


@pytest.mark.parametrize("text", ["Hello", "Who are you?", "Thanks!"])
def test_frequent_phrases_occur_in_training(text: str) -> None:
    drawn = {small_talk(random.Random(seed)).operands for seed in range(4000)}
    assert text in drawn


def test_the_calculator_is_called_for_arithmetic_only() -> None:
    source, called, declined = EverydayCalculator(), 0, 0
    with Desk() as desk:
        for seed in range(60):
            problem = source.draw(random.Random(seed))
            messages = problem.solve(desk)
            assert messages is not None
            calls = [m for m in messages if m.get("tool_calls")]
            talk = problem.checked.name == "exact"
            assert len(calls) == (0 if talk else 1)
            called, declined = called + (not talk), declined + talk
    assert called > 30 and declined > 2


def test_a_question_about_something_else_is_declined() -> None:
    replies = [small_talk(random.Random(seed)).checked.arguments["answer"] for seed in range(300)]
    assert 0.25 < replies.count(SORRY) / 300 < 0.55
    assert Everyday().tools == ()
