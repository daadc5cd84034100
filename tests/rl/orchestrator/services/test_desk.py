"""Shares, limits and speeds of several task services, and how shares follow progress."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.environment import Agents, Episode, Task
from arcforge_core.episodes.agent import SamplingSetup, TextDialogue
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.collection import AsynchronousConfig, ServiceConfig
from arcforge_rl.configs.commands import EnvServeConfig
from arcforge_rl.configs.learning import CurriculumConfig
from arcforge_rl.environments.turns import FairTurns
from arcforge_rl.orchestrator.collector import Collector
from arcforge_rl.orchestrator.group import GroupKey
from arcforge_rl.orchestrator.ledger import Ledger
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.scheduler import Scheduler
from arcforge_rl.orchestrator.services.desk import Service, Services
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.player import PolicyPlayer
from support.ledger_run import TOKENIZER, SeedSays
from support.policies import reward_even


def services(adjust: float = 1.0, clock: Any = lambda: 0.0, total: int = 1 << 30, **of: dict[str, Any]) -> Services:
    made = [
        Service(name, CopyEnvironment(CopyConfig()), ServiceConfig(environment="copy", **fields), new_curriculum())
        for name, fields in of.items()
    ]
    return Services(made, adjust, total, of.get("memory", {}).get("sandbox_mb"), clock)


def new_curriculum() -> Curriculum:
    return Curriculum(CurriculumConfig(), 0)


def admitted(desk: Services, count: int) -> Counter[str]:
    keys = [GroupKey(0, number) for number in range(count)]
    assert all(desk.admit(key) for key in keys)
    return Counter(desk.of[key].name for key in keys)


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=5), st.integers(1, 300))
def test_after_any_number_of_turns_everyone_had_its_share(weights: list[float], count: int) -> None:
    names = {str(number): weight for number, weight in enumerate(weights)}
    turns = FairTurns(names)
    had = Counter(turns.next(names) for _ in range(count))
    for name, weight in names.items():
        assert abs(had[name] - count * weight / sum(weights)) < 1 + 1e-6


def test_groups_are_shared_by_ratio() -> None:
    assert admitted(services(a={"ratio": 3.0}, b={}), 40) == {"a": 30, "b": 10}


def test_ratios_follow_progress_within_the_bound_and_continue_from_the_ledger() -> None:
    desk = services(adjust=2.0, a={}, b={})
    assert desk.ratios() == {"a": 1.0, "b": 1.0}
    for _ in range(40):
        desk.by_name["a"].learn(0.5, True)
        desk.by_name["b"].learn(1.0, False)
    ratios = desk.ratios()
    assert 1.5 < ratios["a"] <= 2.0 and ratios["b"] == 0.5
    figures = desk.figures()
    assert figures["service_a_ratio"] == pytest.approx(ratios["a"] / sum(ratios.values()))
    assert (
        figures["service_b_teaches"] < 0.1 and figures["service_b_reward"] == 1.0 and figures["service_a_groups"] == 40
    )
    fixed = services(adjust=1.0, a={}, b={})
    fixed.by_name["b"].learn(1.0, False)
    assert fixed.ratios() == {"a": 1.0, "b": 1.0}


def test_one_service_without_room_leaves_the_others_their_turns() -> None:
    desk = services(a={"concurrency": 2}, b={})
    scheduler: Scheduler[str] = Scheduler(Rules(4, 2, eta=2.0, concurrency=9), desk=desk)
    found = scheduler.starts()
    running = Counter(desk.of[start.key].name for start in found)
    assert running == {"a": 2, "b": 7}
    for start in found:
        if desk.of[start.key].name == "a":
            scheduler.ended(start.key, start.number, start.attempt, "done", 0)
    again = scheduler.starts()
    assert len(again) == 2 and desk.by_name["a"].running <= 2
    assert desk.by_name["a"].running + desk.by_name["b"].running == 9


def test_slots_and_memory_of_sandboxes_are_limits_of_all_together() -> None:
    wide = services(total=8, wide={"slots": 3}, thin={})
    scheduler: Scheduler[str] = Scheduler(Rules(8, 1, concurrency=100), desk=wide)
    running = Counter(wide.of[start.key].name for start in scheduler.starts())
    assert 3 * running["wide"] + running["thin"] <= 8 and running["wide"] >= 1
    alone = services(total=2, wide={"slots": 3})
    assert len(Scheduler[str](Rules(2, 1, concurrency=9), desk=alone).starts()) == 1, "alone it runs"
    desk = services(heavy={"sandbox_mb": 400}, light={"sandbox_mb": 0})
    desk.sandbox_mb = 1000
    running = Counter(desk.of[s.key].name for s in Scheduler[str](Rules(9, 1, concurrency=12), desk=desk).starts())
    assert running == {"heavy": 2, "light": 10}


def test_a_service_starts_no_faster_than_its_speed() -> None:
    now = [0.0]
    desk = services(clock=lambda: now[0], slow={"per_minute": 30.0})
    scheduler: Scheduler[str] = Scheduler(Rules(4, 2, concurrency=9), desk=desk)
    starts = 0
    for tenth in range(100):
        now[0] = tenth / 10
        starts += len(scheduler.starts())
        assert desk.wait is not None and 0 < desk.wait <= 2.0
    assert starts == 5


def collected(folder: Path, steps: int, until: int, desk: Services) -> list[list[str]]:
    """Continues a run with these services up to a step; returns the tasks of each batch."""

    async def run() -> list[list[str]]:
        ledger = Ledger(folder / "ledger.sqlite", "run")
        setup = SamplingSetup(TextDialogue(TOKENIZER), 5, 1.0, 500)
        rules = Rules(threshold=2, group_size=3, eta=0.0, concurrency=4, retries=1)
        collector = Collector(rules, desk, PolicyPlayer(SeedSays(), setup), 0, ("reward",), ledger)
        await collector.begin(steps)
        found = []
        try:
            for step in range(steps, until):
                taken = await collector.take(step)
                found.append([f"{group[0].trace.rollout_id} {group[0].task.key}" for group in taken.kept])
                collector.finished_step(step + 1)
        finally:
            await collector.stop()
            ledger.close()
        return found

    return asyncio.run(run())


def test_a_resumed_run_continues_the_turns_the_tasks_and_the_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyEnvironment, "exact", reward_even)

    def fresh() -> Services:
        return services(adjust=3.0, a={"ratio": 2.0}, b={})

    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole_desk = fresh()
    whole = collected(tmp_path / "whole", 0, 8, whole_desk)
    first = collected(tmp_path / "cut", 0, 3, fresh())
    cut_desk = fresh()
    again = collected(tmp_path / "cut", 1, 8, cut_desk)
    assert first + again[2:] == whole and again[:2] == first[1:]
    assert cut_desk.ratios() == whole_desk.ratios() and cut_desk.ratios() != {"a": 2.0, "b": 1.0}


def test_services_may_come_and_go_when_a_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopyEnvironment, "exact", reward_even)
    collected(tmp_path, 0, 2, services(a={}, b={}))
    found = collected(tmp_path, 2, 4, services(b={}, c={}))
    assert len(found) == 2
    ledger = Ledger(tmp_path / "ledger.sqlite")
    groups = [group for group in ledger.all_groups() if group.service == "a"]
    removed = {one.reason for group in groups for one in group.rollouts if one.state == "dropped"}
    assert all(one.state in ("trained", "dropped") for group in groups for one in group.rollouts)
    assert {group.service for group in ledger.all_groups()} == {"a", "b", "c"} and removed
    ledger.close()


def test_a_rollout_or_a_verdict_that_never_ends_is_a_failure_of_the_worker(tmp_path: Path) -> None:
    class Endless(CopyEnvironment):
        async def run(self, task: Task, agents: Agents) -> Episode:
            await asyncio.sleep(3600)
            raise AssertionError

    desk = services(copy={}, endless={"seconds": 0.05, "ratio": 0.2})
    desk.by_name["endless"].environment = Endless(CopyConfig())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CopyEnvironment, "exact", reward_even)
        collected(tmp_path, 0, 6, desk)
    counts = desk.by_name["endless"].counts
    assert counts["failed_worker"] == counts["failed"] >= 2
    ledger = Ledger(tmp_path / "ledger.sqlite")
    lost = [one for group in ledger.all_groups() if group.service == "endless" for one in group.rollouts]
    assert {one.reason for one in lost if one.state == "dropped"} <= {"worker", "group"} and lost
    ledger.close()


@pytest.mark.parametrize(
    ("service", "said"),
    [
        ({}, r"collection.services.a=\[\]: must name one of environment, command and url"),
        ({"environment": "copy", "url": "http://x"}, "must name one of environment, command and url"),
        ({"url": "ftp://x"}, "collection.services.a.url='ftp://x': must begin with http"),
        ({"environment": "copy", "ratio": 0.0}, "collection.services.a.ratio=0.0: must be finite and above 0"),
        ({"environment": "copy", "per_minute": -1.0}, "collection.services.a.per_minute=-1.0: must be finite"),
        ({"environment": "copy", "concurrency": 0}, "collection.services.a.concurrency=0: must be at least 1"),
        ({"environment": "copy", "sandbox_mb": 200}, "sandbox_mb=200: must be at most collection.sandbox_mb=100"),
        ({"command": ["x"], "options": {"y": 1}}, "collection.services.a.options"),
        (
            {"enviroment": "copy"},
            r"collection.services.a.enviroment='copy': a service has .*did you mean 'environment'",
        ),
        ({"environment": "copy", "slots": "many"}, "collection.services.a=.*'many'"),
    ],
)
def test_services_that_cannot_be_are_refused(service: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AsynchronousConfig(services={"a": service}, sandbox_mb=100)


def test_a_service_that_is_registered_twice_is_refused() -> None:
    one, other = ServiceConfig(url="http://127.0.0.1:1"), ServiceConfig(url="http://127.0.0.1:1", ratio=2.0)
    with pytest.raises(ConfigError, match=r"collection.services.b='http.*': is collection.services.a registered twice"):
        AsynchronousConfig(services={"a": one, "b": other})
    with pytest.raises(ConfigError, match="a name has letters, digits and underscores"):
        AsynchronousConfig(services={"a b": one})


@pytest.mark.parametrize(
    ("fields", "said"), [({"host": "0.0.0.0"}, "host='0.0.0.0': must be a loopback"), ({"port": 70000}, "port=70000")]
)
def test_a_server_is_of_this_machine_alone(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EnvServeConfig(**fields)
