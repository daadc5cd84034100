import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.checkers import build_checker
from arcforge_rl.problems.numbers import Algebra, Arithmetic, Expressions, TerseExpressions, product
from arcforge_rl.problems.problem import Problem

SEEDS = st.integers(0, 10**9)


def solved(problem: Problem) -> list[dict[str, str]]:
    """Returns the messages; nothing is run, so there is no desk."""
    messages = problem.solve(None)  # type: ignore[arg-type]
    assert messages is not None
    return messages


def holds(problem: Problem) -> bool:
    checker = build_checker(problem.checked.name, problem.checked.arguments)
    return checker.check(solved(problem)[-1]["content"])


@given(SEEDS)
def test_sums_and_differences_of_three_digits_are_right_and_without_thinking(seed: int) -> None:
    problem = Arithmetic().draw(random.Random(seed))
    question, answer = solved(problem)
    match = re.search(r"(\d{1,3}) ?([+-]) ?(\d{1,3})", question["content"])
    assert match and "reasoning_content" not in answer
    a, b = int(match[1]), int(match[3])
    assert answer["content"] == str(a + b if match[2] == "+" else a - b)
    assert problem.operands == f"{min(a, b)},{max(a, b)}", "a+b, b+a and a-b are on one side"
    assert holds(problem)


@pytest.mark.parametrize("kind", [Expressions, TerseExpressions])
@given(seed=SEEDS, steps=st.integers(2, 3))
def test_expressions_are_right_in_every_step(kind: type[Expressions], seed: int, steps: int) -> None:
    problem = kind(steps).draw(random.Random(seed))
    question, answer = solved(problem)
    expression = re.search(r"[\d(][\d()+*-]+[\d)]", question["content"])
    assert expression and eval(expression[0]) == int(answer["content"])
    assert len(re.findall("[-+*]", expression[0])) == steps
    assert all(len(number) == 2 for number in re.findall(r"\d+", expression[0]))
    for line in answer["reasoning_content"].splitlines():
        values = [eval(side) for side in line.split(" = ")]
        assert len(values) >= 2 and len(set(values)) == 1, line
    assert answer["reasoning_content"].endswith(f"= {answer['content']}")
    assert holds(problem)


@given(SEEDS)
def test_terse_expressions_are_the_same_problems_with_a_line_for_each_step(seed: int) -> None:
    long, terse = Expressions().draw(random.Random(seed)), TerseExpressions().draw(random.Random(seed))
    (question, worked_out), (asked_again, brief) = solved(long), solved(terse)
    assert (question, long.operands, worked_out["content"]) == (asked_again, terse.operands, brief["content"])
    first, second = brief["reasoning_content"].splitlines()
    assert re.fullmatch(r"\d+[*+]\d+ = \d+", first) and re.fullmatch(r"\d+[-+*]\d+ = -?\d+", second)


@given(SEEDS, st.sampled_from([1, 20, 1000]))
def test_equations_are_solved_in_every_step(seed: int, largest: int) -> None:
    problem = Algebra(largest).draw(random.Random(seed))
    _, answer = solved(problem)
    name, x = answer["content"].split(" = ")
    assert abs(int(x)) <= largest
    for line in answer["reasoning_content"].splitlines():
        left, right = re.sub(rf"(\d){name}", r"\1*x", line.split(": ")[-1]).replace(f"{name} =", "x =").split(" = ")
        assert eval(left, {"x": int(x)}) == eval(right, {"x": int(x)}), line
    assert holds(problem)


@given(st.integers(1, 999), st.integers(1, 999))
def test_products_are_worked_out(a: int, b: int) -> None:
    assert product(a, b).endswith(f"= {a * b}") and product(a, b).splitlines()[-1].startswith(f"{a}*{b} = ")


@pytest.mark.parametrize("source", [Arithmetic(), Expressions(), Algebra()])
def test_problems_are_many_and_the_same_again(source: Arithmetic) -> None:
    drawn = [source.draw(random.Random(n)).operands for n in range(300)]
    assert drawn == [source.draw(random.Random(n)).operands for n in range(300)]
    assert len(set(drawn)) > 200


def test_knobs_leave_the_problems_of_the_data_as_they_were() -> None:
    drawn = [solved(kind().draw(random.Random(7)))[0]["content"] for kind in (Arithmetic, Expressions, Algebra)]
    assert drawn == ["970+50", "51*29+60=", "Find z if 7z - 26 = 5z - 48."]
