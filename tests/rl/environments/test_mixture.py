"""Mixtures keep their parts in balance, by number alone."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.contracts.chat import ChatOptions
from arcforge_core.contracts.environment import Agents, Reply
from arcforge_core.episodes.agent import THINKING
from arcforge_core.errors import ConfigError, UnknownComponentError
from arcforge_core.testing.environment_suite import score
from arcforge_rl.configs.environments import MixtureConfig
from arcforge_rl.environments.mixture import InMode, Mixture, schedule
from arcforge_rl.rollouts.records import as_record

WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.05, 20), min_size=1)


@given(WEIGHTS)
def test_every_part_is_as_near_to_its_share_as_it_can_be(parts):
    order = schedule(parts)
    counts = Counter(order)
    assert set(counts) == set(parts)
    for place in range(1, len(order) + 1):
        so_far = Counter(order[:place])
        assert all(abs(so_far[name] - place * count / len(order)) < len(parts) for name, count in counts.items())
    largest = max(parts.values())
    assert all(abs(counts[n] / max(counts.values()) - w / largest) <= 0.0101 for n, w in parts.items())


def test_tasks_are_those_of_the_parts_one_after_the_other():
    mixture = Mixture(MixtureConfig(parts={"math": 2.0, "copy": 1.0}, options={"math": {"kinds": ["algebra"]}}))
    tasks = [mixture.task(n) for n in range(12)]
    assert Counter(task.part for task in tasks) == {"math": 8, "copy": 4}
    for part in ("math", "copy"):
        own = [task.task for task in tasks if task.part == part]
        assert own == [mixture.parts[part].task(n) for n in range(len(own))]
    assert {mixture.domain_of(task) for task in tasks} == {"math", "copy"}
    assert all(" = " in task.prompt for task in tasks if task.part == "math"), "algebra has equations"
    copied = next(task for task in tasks if task.part == "copy")
    assert score(mixture, copied, [Reply(copied.answer)]).rewards == {"reward": 1.0, "exact": 1.0}


def test_a_weight_of_zero_leaves_a_part_out():
    mixture = Mixture(MixtureConfig(parts={"math": 0.0, "copy": 1.0, "arithmetic": 1.0}))
    assert Counter(mixture.stage_of(mixture.task(n)) for n in range(8)) == {"copy": 4, "arithmetic": 4}


def test_the_split_is_the_parts():
    sides = [Mixture(MixtureConfig(parts={"copy": 1.0, "arithmetic": 1.0}, split=s)) for s in ("train", "heldout")]
    assert not {sides[0].task(n).key for n in range(200)} & {sides[1].task(n).key for n in range(200)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": {}}, "environment.parts="),
        ({"parts": {"copy": 0.0, "math": 0.0}}, "environment.parts="),
        ({"parts": {"copy": -1.0}}, "environment.parts"),
        ({"parts": {"copy": 1.0, "math": float("nan")}}, "environment.parts.math=nan"),
        ({"parts": {"copy": 1.0}, "options": {"math": {}}}, "environment.options='math'"),
        ({"parts": {"copy": 1.0}, "thinking": {"math": "on"}}, "environment.thinking='math'"),
        ({"parts": {"copy": 1.0}, "thinking": {"copy": "yes"}}, "environment.thinking.copy='yes'"),
    ],
)
def test_bad_config_is_named(options, message):
    with pytest.raises(ConfigError) as caught:
        MixtureConfig(**options)
    assert message in str(caught.value)


def test_a_part_may_think_in_its_own_mode():
    asked, given = [], ChatOptions(clear_thinking=False)

    class Solver:
        async def reply(self, messages, tools=(), options=None):
            asked.append(options)
            return Reply("")

    mixture = Mixture(MixtureConfig(parts={"copy": 1.0, "arithmetic": 1.0}, thinking={"copy": "on"}))
    agents = Agents(Solver(), judge=Solver())
    for task in map(mixture.task, range(2)):
        asyncio.run(mixture.run(task, agents))
        assert asked.pop() == (THINKING["on"] if mixture.stage_of(task) == "copy" else None)
    asyncio.run(InMode(agents.solver, THINKING["off"]).reply([], (), given))
    assert asked == [given], "a task's own mode counts more"
    assert agents.with_solver(agents.judge).judge is agents.judge
    rollouts = [
        SimpleNamespace(task=task, domain="d", record=lambda: {"messages": [{"content": "a"}]})
        for task in map(mixture.task, range(2))
    ]
    for thinking in (False, True):
        modes = {one.task.part: as_record(one, thinking)["thinking"] for one in rollouts}
        assert modes == {"copy": "interleaved", "arithmetic": "interleaved" if thinking else "off"}


def test_bad_parts_are_named():
    with pytest.raises(UnknownComponentError, match="mth"):
        Mixture(MixtureConfig(parts={"mth": 1.0}))
    with pytest.raises(ConfigError, match="must not be a mixture itself"):
        Mixture(MixtureConfig(parts={"mixture": 1.0}))
    with pytest.raises(ConfigError, match=r"options\.copy='words'.*copy takes letters, seed"):
        Mixture(MixtureConfig(parts={"copy": 1.0}, options={"copy": {"words": 3}}))
    with pytest.raises(ConfigError, match=r"environment\.letters=0"):
        Mixture(MixtureConfig(parts={"copy": 1.0}, options={"copy": {"letters": 0}}))
