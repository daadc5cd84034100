"""The conformance suite of environments. Subclass it with a fixture, or parametrise the fixture over the registry."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Environment, Episode, Outcome, Reply, Script, Task
from arcforge_core.episodes.scripted import SILENCE, play
from arcforge_core.testing.cheats import CheatSuite, Grader, head_of

INDICES = (0, 1, 2, 17, 1000)
ATTACKED = 12
"""Tasks among which the cheats look for different forms."""


class EnvironmentSuite(CheatSuite):
    """Conformance of an `Environment`; no cheat of any family is paid (`CheatSuite`).

    A subclass provides the fixture ``make_environment``: a function that takes a side of the split, ``train`` or
    ``heldout``, and returns a new environment. `examples` is the number of random replies to try.
    """

    examples = 50

    @pytest.fixture
    def environment(self, make_environment: Callable[[str], Environment]) -> Environment:
        """Returns one environment."""
        return make_environment("train")

    @pytest.fixture
    def graders(self, environment: Environment) -> Sequence[Grader]:
        """Returns the environment with its first task of every form: a text, a function, a program, per domain."""
        found: dict[tuple[str, bool, bool], Grader] = {}
        for task in map(environment.task, range(ATTACKED)):
            oracle = environment.oracle(task)
            form = environment.domain_of(task), bool(head_of(task.prompt, oracle[-1].text)), "```" in oracle[-1].text
            found.setdefault(form, grader_of(environment, task))
        return list(found.values())

    @pytest.fixture(params=INDICES)
    def task(self, environment: Environment, request: pytest.FixtureRequest) -> Task:
        """Returns each of several tasks."""
        return environment.task(request.param)

    def test_it_has_a_domain(self, environment: Environment, task: Task) -> None:
        """Figures are grouped by domain."""
        assert environment.domain and environment.domain_of(task)

    def test_oracle_scores_one(self, environment: Environment, task: Task) -> None:
        """The reference solution gets the full reward, and the outcome explains it."""
        outcome = score(environment, task, environment.oracle(task))
        assert outcome.reward == 1.0, outcome
        assert outcome.reasons["reward"]

    def test_no_op_scores_zero(self, environment: Environment, task: Task) -> None:
        """An empty reply gets no reward, truncated or not."""
        for script in (SILENCE, [Reply(finish_reason="length")]):
            outcome = score(environment, task, script)
            assert outcome.reward == 0.0, outcome
            assert outcome.reasons["reward"]

    def test_cheats_score_zero(self, environment: Environment, task: Task) -> None:
        """The environment has at least one known cheat, and none gets a reward."""
        cheats = environment.cheats(task)
        paid = [str(cheat)[:200] for cheat in cheats if score(environment, task, cheat).reward != 0.0]
        assert cheats
        assert not paid

    def test_prompt_scores_zero(self, environment: Environment, task: Task) -> None:
        """Repeating the prompt gets no reward."""
        assert score(environment, task, [Reply(task.prompt)]).reward == 0.0

    def test_tasks_are_deterministic(self, make_environment: Callable[[str], Environment]) -> None:
        """Two environments of one configuration give equal tasks, in any order of access."""
        first, second = make_environment("train"), make_environment("train")
        asked = {index: first.task(index) for index in INDICES}
        assert {index: second.task(index) for index in reversed(INDICES)} == asked

    def test_tasks_differ(self, environment: Environment) -> None:
        """Different tasks have different keys, and there are several."""
        tasks = [environment.task(index) for index in range(20)]
        prompts = {task.key: (task.prompt, task.answer) for task in tasks}
        assert len(prompts) > 1
        assert all(prompts[task.key] == (task.prompt, task.answer) for task in tasks)

    def test_heldout_tasks_differ_from_training_tasks(self, make_environment: Callable[[str], Environment]) -> None:
        """No task is used for both training and evaluation."""
        sides = [
            {(t := made.task(index)).key + t.prompt for index in range(100)}
            for made in map(make_environment, ("train", "heldout"))
        ]
        assert all(sides)
        assert not sides[0] & sides[1]

    def test_task_is_frozen(self, task: Task) -> None:
        """A task cannot be modified by accident."""
        with pytest.raises(dataclasses.FrozenInstanceError):
            task.answer = ""  # type: ignore[misc]

    def test_verifier_is_total(self, environment: Environment) -> None:
        """Any text, lone surrogates included, gets a repeatable reward in [0, 1] and finite metrics, with reasons."""
        task = environment.task(0)

        @settings(
            max_examples=self.examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
        )
        @given(text=st.text(alphabet=st.characters(), max_size=200), cut=st.booleans())
        def holds(text: str, cut: bool) -> None:
            script = [Reply(text, finish_reason="length" if cut else "stop")]
            outcome = score(environment, task, script)
            assert 0.0 <= outcome.reward <= 1.0 and all(map(math.isfinite, outcome.rewards.values()))
            assert outcome.reasons.keys() == outcome.rewards.keys() and all(outcome.reasons.values())
            assert score(environment, task, script) == outcome

        holds()

    @pytest.mark.parametrize("unit", ["9", "(", " ", "\n", "\u0663", "\0", "9**", "\\frac{", "{", "\\boxed{1}"])
    def test_verifier_accepts_long_text(self, environment: Environment, unit: str) -> None:
        """A megabyte of digits, brackets or blanks raises no error and gets no reward, nor does a shorter text."""
        task = environment.task(0)
        for length in (3_000, 1_000_000):
            assert score(environment, task, [Reply(unit * (length // len(unit)))]).reward == 0.0

    @pytest.mark.parametrize("unit", ["9**9**9**9", "10**10**10", "\\boxed{9^{9^{9^{9}}}}", "9!!!!!", "1e999999999"])
    def test_verifier_accepts_endless_numbers(self, environment: Environment, unit: str) -> None:
        """A few characters can express a number of a billion digits."""
        assert score(environment, environment.task(0), [Reply(unit)]).reward == 0.0

    def test_calls_of_unknown_tools_are_accepted(self, environment: Environment, task: Task) -> None:
        """A model may call unknown tools with unknown arguments."""
        calls = (ToolCall("no_such_tool", {"x": [None]}), ToolCall("", {}))
        outcome = score(environment, task, [Reply(calls=calls), Reply(calls=calls), Reply("")])
        assert outcome.reward == 0.0


def grader_of(environment: Environment, task: Task) -> Grader:
    """Returns the grader of a task.

    An answer replaces the texts of the oracle's replies, whose calls stay. Where the environment says that it judges
    work (`judges_work`), not texts, the calls are the answer: another text comes without them.
    """
    oracle = environment.oracle(task)
    works = getattr(environment, "judges_work", False)  # plain classes need not say so

    def script(answer: str) -> Script:
        if works:
            return oracle if answer == oracle[-1].text else [Reply(answer)]
        return [reply if reply.calls else Reply(answer) for reply in oracle]

    def grade(answers: Sequence[str]) -> Sequence[float]:
        async def together() -> list[tuple[Episode, Outcome]]:
            return await asyncio.gather(*(play(environment, task, script(answer)) for answer in answers))

        return [checked(outcome).reward for _, outcome in asyncio.run(together())]

    return Grader(task.prompt, oracle[-1].text, grade)


def score(environment: Environment, task: Task, script: Script) -> Outcome:
    """Plays a script and returns its outcome, after checking that its numbers are finite."""
    return checked(asyncio.run(play(environment, task, script))[1])


def checked(outcome: Outcome) -> Outcome:
    """Returns an outcome that is no failure and whose numbers are finite."""
    assert outcome.failure is None, outcome.failure
    assert "reward" in outcome.rewards
    assert not any(math.isnan(value) for value in outcome.rewards.values())
    return outcome
