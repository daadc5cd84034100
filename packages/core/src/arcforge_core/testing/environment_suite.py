"""What every environment must hold. Subclass it with a fixture, or parametrise the fixture over the registry."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Environment, Outcome, Reply, Script, Task
from arcforge_core.environments.scripted import SILENCE, play

INDICES = (0, 1, 2, 17, 1000)


class EnvironmentSuite:
    """Conformance of an `Environment`.

    A subclass gives the fixture ``make_environment``: a function that takes a side of the split, ``train`` or
    ``heldout``, and returns a fresh environment. `examples` is how many random replies are tried.
    """

    examples = 50

    @pytest.fixture
    def environment(self, make_environment: Callable[[str], Environment]) -> Environment:
        """Returns one environment."""
        return make_environment("train")

    @pytest.fixture(params=INDICES)
    def task(self, environment: Environment, request: pytest.FixtureRequest) -> Task:
        """Returns one task after the other."""
        return environment.task(request.param)

    def test_it_has_a_domain(self, environment: Environment, task: Task) -> None:
        """Figures are kept by domain."""
        assert environment.domain and environment.domain_of(task)

    def test_oracle_scores_one(self, environment: Environment, task: Task) -> None:
        """The reference solution earns the full reward, and the outcome says what for."""
        outcome = score(environment, task, environment.oracle(task))
        assert outcome.reward == 1.0, outcome
        assert outcome.reasons["reward"]

    def test_no_op_scores_zero(self, environment: Environment, task: Task) -> None:
        """Saying nothing earns nothing, also where it was cut off."""
        for script in (SILENCE, [Reply(finish_reason="length")]):
            outcome = score(environment, task, script)
            assert outcome.reward == 0.0, outcome
            assert outcome.reasons["reward"]

    def test_cheats_score_zero(self, environment: Environment, task: Task) -> None:
        """There is at least one known cheat, and none pays."""
        cheats = environment.cheats(task)
        paid = [str(cheat)[:200] for cheat in cheats if score(environment, task, cheat).reward != 0.0]
        assert cheats
        assert not paid

    def test_prompt_scores_zero(self, environment: Environment, task: Task) -> None:
        """Saying the prompt again earns nothing."""
        assert score(environment, task, [Reply(task.prompt)]).reward == 0.0

    def test_tasks_are_deterministic(self, make_environment: Callable[[str], Environment]) -> None:
        """Two environments of one configuration give equal tasks, in any order of asking."""
        first, second = make_environment("train"), make_environment("train")
        asked = {index: first.task(index) for index in INDICES}
        assert {index: second.task(index) for index in reversed(INDICES)} == asked

    def test_tasks_differ(self, environment: Environment) -> None:
        """Different tasks have different keys, and there are several."""
        tasks = [environment.task(index) for index in range(20)]
        prompts = {task.key: (task.prompt, task.answer) for task in tasks}
        assert len(prompts) > 1
        assert all(prompts[task.key] == (task.prompt, task.answer) for task in tasks)

    def test_heldout_tasks_are_others(self, make_environment: Callable[[str], Environment]) -> None:
        """No task is trained and evaluated on."""
        sides = [
            {(t := made.task(index)).key + t.prompt for index in range(100)}
            for made in map(make_environment, ("train", "heldout"))
        ]
        assert all(sides)
        assert not sides[0] & sides[1]

    def test_task_is_frozen(self, task: Task) -> None:
        """Nobody changes a task by accident."""
        with pytest.raises(dataclasses.FrozenInstanceError):
            task.answer = ""  # type: ignore[misc]

    def test_verifier_is_total(self, environment: Environment) -> None:
        """Any text, lone surrogates included, gets rewards in [0, 1] with reasons, and the same ones again."""
        task = environment.task(0)

        @settings(
            max_examples=self.examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
        )
        @given(text=st.text(alphabet=st.characters(), max_size=200), cut=st.booleans())
        def holds(text: str, cut: bool) -> None:
            script = [Reply(text, finish_reason="length" if cut else "stop")]
            outcome = score(environment, task, script)
            assert all(0.0 <= value <= 1.0 for value in outcome.rewards.values())
            assert outcome.reasons.keys() == outcome.rewards.keys() and all(outcome.reasons.values())
            assert score(environment, task, script) == outcome

        holds()

    @pytest.mark.parametrize("unit", ["9", "(", " ", "\n", "\u0663", "\0", "9**", "\\frac{", "{", "\\boxed{1}"])
    def test_verifier_bears_long_text(self, environment: Environment, unit: str) -> None:
        """A megabyte of digits, brackets or blanks neither raises nor pays, and neither does a shorter one."""
        task = environment.task(0)
        for length in (3_000, 1_000_000):
            assert score(environment, task, [Reply(unit * (length // len(unit)))]).reward == 0.0

    @pytest.mark.parametrize("unit", ["9**9**9**9", "10**10**10", "\\boxed{9^{9^{9^{9}}}}", "9!!!!!", "1e999999999"])
    def test_verifier_bears_endless_numbers(self, environment: Environment, unit: str) -> None:
        """Numbers of a billion digits are written in a few characters."""
        assert score(environment, environment.task(0), [Reply(unit)]).reward == 0.0

    def test_calls_of_unknown_tools_are_borne(self, environment: Environment, task: Task) -> None:
        """A model calls what nobody offered, with what nobody asked for."""
        calls = (ToolCall("no_such_tool", {"x": [None]}), ToolCall("", {}))
        outcome = score(environment, task, [Reply(calls=calls), Reply(calls=calls), Reply("")])
        assert outcome.reward == 0.0


def score(environment: Environment, task: Task, script: Script) -> Outcome:
    """Plays a script and returns its outcome, whose numbers must be numbers."""
    outcome = asyncio.run(play(environment, task, script))[1]
    assert "reward" in outcome.rewards
    assert not any(math.isnan(value) for value in outcome.rewards.values())
    return outcome
