import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.contracts.environment import Reply
from arcforge_core.errors import ConfigError
from arcforge_core.testing.environment_suite import score
from arcforge_rl.configs.commands import ArithmeticConfig
from arcforge_rl.environments.math import PlainMath


@given(
    index=st.integers(0, 10**6),
    digits=st.integers(1, 30),
    operations=st.lists(st.sampled_from(["add", "subtract", "multiply"]), min_size=1, unique=True),
)
def test_answers_are_right(index: int, digits: int, operations: list[str]) -> None:
    task = PlainMath(ArithmeticConfig(digits=digits, operations=operations)).task(index)
    match = re.fullmatch(r"(\d+)([-+*])(\d+)=", task.prompt)
    assert match
    left, sign, right = int(match[1]), match[2], int(match[3])
    assert task.answer == str({"+": left + right, "-": left - right, "*": left * right}[sign])
    assert max(len(match[1]), len(match[3])) <= digits
    assert {"+": "add", "-": "subtract", "*": "multiply"}[sign] in operations
    assert task.prompt.rstrip("=") in task.key


def test_operations_and_lengths_all_occur() -> None:
    environment = PlainMath(ArithmeticConfig(digits=2, operations=["add", "subtract", "multiply"]))
    prompts = [environment.task(n).prompt for n in range(200)]
    assert {sign for p in prompts for sign in "+-*" if sign in p} == {"+", "-", "*"}
    assert {len(number) for p in prompts for number in re.findall(r"\d+", p)} == {1, 2}


def test_seed_changes_the_tasks() -> None:
    first, second = (PlainMath(ArithmeticConfig(seed=seed)) for seed in (0, 1))
    assert [first.task(n) for n in range(5)] != [second.task(n) for n in range(5)]


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("{}", 1), (" {} ", 1), ("{}\r\nand more", 1), ("{}\n13", 1), ("{} 13", 0), ("{}0", 0), ("{}.", 0), ("", 0)],
)
def test_first_line_must_be_the_answer(completion: str, reward: float) -> None:
    environment = PlainMath(ArithmeticConfig())
    task = environment.task(3)
    assert score(environment, task, [Reply(completion.format(task.answer))]).rewards == {
        "reward": reward,
        "exact": reward,
    }


@given(st.integers(-(10**6), 10**6))
def test_other_numbers_never_pay(number: int) -> None:
    environment = PlainMath(ArithmeticConfig())
    task = environment.task(0)
    assert score(environment, task, [Reply(str(number))]).reward == float(str(number) == task.answer)


@pytest.mark.parametrize(
    ("field", "value"), [("digits", 0), ("digits", 101), ("seed", -1), ("operations", []), ("operations", ["divide"])]
)
def test_bad_config_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"environment\.{field}="):
        ArithmeticConfig(**{field: value})  # type: ignore[arg-type]
