"""What every environment must hold. Subclass it with a fixture, or parametrise the fixture over the registry."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.environment import Environment, Task

INDICES = (0, 1, 2, 17, 1000)


class EnvironmentSuite:
    """Conformance of an `Environment`.

    A subclass gives the fixture ``make_environment``: a function without arguments that returns a fresh environment.
    """

    @pytest.fixture
    def environment(self, make_environment: object) -> Environment:
        """Returns one environment."""
        return make_environment()  # type: ignore[operator, no-any-return]

    @pytest.fixture(params=INDICES)
    def task(self, environment: Environment, request: pytest.FixtureRequest) -> Task:
        """Returns one task after the other."""
        return environment.task(request.param)

    def test_oracle_scores_one(self, environment: Environment, task: Task) -> None:
        """The reference solution earns the full reward."""
        assert environment.score(task, environment.oracle(task))["reward"] == 1.0

    def test_no_op_scores_zero(self, environment: Environment, task: Task) -> None:
        """Saying nothing earns nothing."""
        assert environment.score(task, "")["reward"] == 0.0

    def test_cheats_score_zero(self, environment: Environment, task: Task) -> None:
        """There is at least one known cheat, and none pays."""
        cheats = environment.cheats(task)
        paid = [cheat[:80] for cheat in cheats if environment.score(task, cheat)["reward"] != 0.0]
        assert cheats
        assert not paid

    def test_prompt_scores_zero(self, environment: Environment, task: Task) -> None:
        """Saying the prompt again earns nothing."""
        assert environment.score(task, task.prompt)["reward"] == 0.0

    def test_tasks_are_deterministic(self, make_environment: object) -> None:
        """Two environments of one configuration give equal tasks, in any order of asking."""
        first, second = make_environment(), make_environment()  # type: ignore[operator]
        asked = {index: first.task(index) for index in INDICES}
        assert {index: second.task(index) for index in reversed(INDICES)} == asked

    def test_tasks_differ(self, environment: Environment) -> None:
        """Different tasks have different keys, and there are several."""
        tasks = [environment.task(index) for index in range(20)]
        prompts = {task.key: (task.prompt, task.answer) for task in tasks}
        assert len(prompts) > 1
        assert all(prompts[task.key] == (task.prompt, task.answer) for task in tasks)

    def test_task_is_frozen(self, task: Task) -> None:
        """Nobody changes a task by accident."""
        with pytest.raises(dataclasses.FrozenInstanceError):
            task.answer = ""  # type: ignore[misc]

    @settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(completion=st.text(alphabet=st.characters(), max_size=200))
    def test_verifier_is_total(self, environment: Environment, completion: str) -> None:
        """Any text, lone surrogates included, gets rewards in [0, 1], and the same ones again."""
        task = environment.task(0)
        rewards = environment.score(task, completion)
        assert "reward" in rewards
        assert all(0.0 <= value <= 1.0 for value in rewards.values())
        assert environment.score(task, completion) == rewards

    def test_verifier_bears_long_text(self, environment: Environment, task: Task) -> None:
        """A megabyte of digits, brackets or blanks neither raises nor pays."""
        for unit in ("9", "(", " ", "\n", "\u0663", "\0"):
            assert environment.score(task, unit * 1_000_000)["reward"] == 0.0
