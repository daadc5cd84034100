"""Who is alive: the dead are found in time, get no work, lose no rollout, and work again once they are back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.rl.orchestrator.test_source import ASYNC
from tests.rl.trainer.conftest import Compose, learnable, no_drawing, policy, small_run
from tests.rl.trainer.test_run import metrics

from arcforge_core.configs import CopyConfig
from arcforge_core.console.progress import say
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.episodes.agent import SamplingSetup, TextDialogue
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ArcforgeError
from arcforge_rl.configs.collection import ServiceConfig
from arcforge_rl.configs.learning import CurriculumConfig
from arcforge_rl.orchestrator import heartbeats, source
from arcforge_rl.orchestrator.collector import Collector
from arcforge_rl.orchestrator.heartbeats import ENGINE, Ask, Heartbeats, Watch
from arcforge_rl.orchestrator.ledger import Ledger
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.services.desk import Service, Services, environment_of, single
from arcforge_rl.orchestrator.source import AsynchronousSource
from arcforge_rl.rollouts.curriculum import Curriculum
from arcforge_rl.rollouts.player import PolicyPlayer
from arcforge_rl.trainer.run import run
from arcforge_serving.engine.paged import PagedEngine
from support import even_service
from support.clocks import MovedClock
from support.ledger_run import TOKENIZER, SeedSays
from support.marks import nightly_case
from support.orchestrated import serving
from support.policies import reward_even

__all__ = ["learnable", "no_drawing", "policy", "small_run"]
RULES = Rules(threshold=2, group_size=3, eta=2.0, concurrency=6, retries=0)


def test_a_silent_peer_is_dead_in_time_and_works_again_when_it_answers() -> None:
    now, answering, changes, errors = [0.0], asyncio.Event(), list[tuple[str, bool]](), list[Exception]()
    record = Heartbeats(30.0, lambda: now[0])

    async def ask() -> None:
        await answering.wait()

    async def work() -> None:
        watch = Watch(record, 1.0, {"engine": ask}, lambda *change: changes.append(change), errors.append)

        async def at(seconds: float) -> None:
            now[0] = seconds
            watch.tick()
            await asyncio.sleep(0)

        await at(30.0)
        assert changes == [] and record.peers["engine"].alive
        await at(30.1)
        await at(31.0)
        assert changes == [("engine", False)], "once"
        assert record.show()["engine"] == {
            "alive": False, "heard": 31.0, "deaths": 1, "problem": "has not answered for 30 s"
        }  # fmt: skip
        await at(330.0)
        assert errors == []
        await at(330.2)
        assert str(errors[0]) == "engine has not answered for 30 s, and has not come back in 300 s"
        answering.set()
        assert await watch.answers("engine")
        assert changes == [("engine", False), ("engine", True)] and record.deaths() == {"died_engine": 1}

    asyncio.run(work())


def test_the_interval_is_that_of_asking() -> None:
    async def asked(interval: float) -> int:
        count, clock = [0], MovedClock()

        async def ask() -> None:
            count[0] += 1

        watch = Watch(Heartbeats(30.0), interval, {"engine": ask}, lambda *change: None, lambda error: None)
        watching = asyncio.create_task(watch.run())
        for _ in range(10):
            for _ in range(5):  # each question needs some rounds of the loop
                await asyncio.sleep(0)
            clock.move(100.0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return count[0]

    assert [asyncio.run(asked(interval)) for interval in (90.0, 190.0, 10_000.0)] == [10, 5, 1]


def collector_of(
    folder: Path, asking: SeedSays, services: Services, asks: dict[str, Ask], record: Heartbeats | None = None
) -> Collector:
    setup = SamplingSetup(TextDialogue(TOKENIZER), 5, 1.0, 500)
    ledger = Ledger(folder / "ledger.sqlite")
    collector = Collector(RULES, services, PolicyPlayer(asking, setup), 0, ("reward",), ledger)
    collector.watch = Watch(record or Heartbeats(30.0), 0.05, asks, collector.change, collector.fail)
    return collector


class Mortal(SeedSays):
    """An engine that is gone for a while after some requests; no request fails otherwise."""

    def __init__(self, lasts: int) -> None:
        self.left, self.gone, self.asked_while_gone = lasts, False, 0

    async def ask(
        self, number: int, prompt: Sequence[int], params: SamplingParams, session: str = ""
    ) -> GenerationOutput:
        await asyncio.sleep(0)
        self.left -= 1
        self.gone = self.gone or self.left == 0
        if self.gone:
            self.asked_while_gone += 1
            raise OSError("connection refused")
        ids = [TOKENIZER.encode("2" if params.seed % 3 else "1")[0], TOKENIZER.eos_id]
        return GenerationOutput(ids, [-1.0, -0.5], "stop", self.version)

    async def answers(self) -> None:
        if self.gone:
            raise ArcforgeError("connection refused")


def test_rollouts_of_a_dead_engine_wait_for_it_and_fail_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without retries: each failure would cost its rollout."""
    monkeypatch.setattr(CopyEnvironment, "exact", reward_even)
    engine = Mortal(lasts=9)

    async def work() -> None:
        collector = collector_of(tmp_path, engine, single(CopyEnvironment(CopyConfig())), {ENGINE: engine.answers})
        assert collector.watch is not None
        watching = asyncio.create_task(collector.watch.run())
        await collector.begin(0)
        taking = asyncio.create_task(collector.take(0))
        while collector.watch.heartbeats.peers[ENGINE].alive:
            await asyncio.sleep(0.01)
        asked = engine.asked_while_gone
        await asyncio.sleep(0.2)
        assert engine.asked_while_gone == asked <= 12 and collector.scheduler.idle, (
            "it gets no work; an agent asks twice"
        )
        engine.gone = False
        counts = (await taking).counts
        for step in range(1, 4):
            collector.finished_step(step)
            engine.version = step
            counts += (await collector.take(step)).counts
        assert counts["died_engine"] == 1 and counts["reissued"] >= 1
        assert not [name for name in counts if name.startswith("failed")] and counts["retried"] == 0
        watching.cancel()
        await collector.stop()
        collector.ledger.close()

    asyncio.run(asyncio.wait_for(work(), 60))
    said = capsys.readouterr().err
    assert "engine cannot work: connection refused; its rollouts wait" in said and "engine is back" in said


def test_a_service_that_hangs_is_started_again_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyEnvironment, "exact", reward_even)
    path = tmp_path / "service.pid"
    config = ServiceConfig(command=[sys.executable, even_service.__file__, str(path), "0.001"])
    even = Service("even", environment_of("even", config), config, Curriculum(CurriculumConfig(), 0))
    engine = Mortal(lasts=-1)
    services = Services([*single(CopyEnvironment(CopyConfig())).by_name.values(), even])

    ahead = [0.0]  # of the clock, moved when the service hangs: a busy machine may be slow to start it

    async def work() -> None:
        asks: dict[str, Ask] = {title: far.answers for title, far in services.far().items()}
        record = Heartbeats(600.0, lambda: time.monotonic() + ahead[0])
        collector = collector_of(tmp_path, engine, services, asks, record)
        assert collector.watch is not None
        watching = asyncio.create_task(collector.watch.run())
        await collector.begin(0)
        await collector.take(0)
        first = int(path.read_text())
        os.kill(first, signal.SIGSTOP)
        step, groups = 1, even.counts["groups"]
        for _ in range(5):  # an answer from before may be on its way, and is heard after the first move
            ahead[0] += 601.0
            await asyncio.sleep(0.2)
            if even.dead:
                break
        assert even.dead
        while even.counts["groups"] < groups + 3:
            collector.finished_step(step)
            engine.version = step
            taken = await collector.take(step)
            assert not taken.counts["failed_worker"]
            step += 1
        assert int(path.read_text()) != first and not even.dead
        died = collector.watch.heartbeats.deaths()
        assert died == {"died_task_service_even": 1} and collector.scheduler.counts["reissued"] > 0
        watching.cancel()
        await collector.stop()
        collector.ledger.close()
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_rollouts_that_are_cancelled_before_they_begin_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tasks never run: nothing of their code does."""
    monkeypatch.setattr(CopyEnvironment, "exact", reward_even)

    async def work() -> None:
        collector = collector_of(tmp_path, Mortal(lasts=-1), single(CopyEnvironment(CopyConfig())), {})
        await collector.begin(0)
        assert len(collector._playing) == RULES.concurrency
        collector.change(ENGINE, False)
        await asyncio.sleep(0.01)
        assert collector._playing == {} and collector.scheduler.idle
        collector.change(ENGINE, True)
        collector.change(ENGINE, False)
        collector.change(ENGINE, True)  # in one turn of the loop: a later task has the place of one that never ran
        assert len(collector._playing) == RULES.concurrency
        assert len((await collector.take(0)).kept) == RULES.threshold
        await collector.stop()
        await asyncio.sleep(0)
        assert collector._playing == {}
        collector.ledger.close()

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.slow(reason="a run on a server that hangs")
@pytest.mark.parametrize("place", ["thread", nightly_case("process")])
def test_an_engine_that_hangs_in_an_update_gets_no_rollouts_until_it_has_the_weights(
    small_run: Compose, policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """It answers meanwhile, and would generate."""
    update, hung, waits, buried = PagedEngine.update_weights, list[int](), threading.Event(), threading.Event()

    def noted(text: str) -> None:
        say(text)
        for event, part in ((waits, "it has version 2; waiting for the engine"), (buried, "weights 2 in place of 3")):
            if part in text:
                event.set()

    def hangs(engine: PagedEngine, state: Any, *, version: int | None = None, **given: Any) -> None:
        if version == 3 and not hung:
            hung.append(version)
            waits.wait(60)
            if place == "thread":
                buried.wait(60)
            else:  # the other process says so itself
                time.sleep(2.0)
        update(engine, state, version=version, **given)

    monkeypatch.setattr(PagedEngine, "update_weights", hangs)
    for module in (source, heartbeats):
        monkeypatch.setattr(module, "say", noted)
    with serving(policy) as (address, _):
        options = ("engine=arcforge", f"engine.url={address}", "engine.stream=false", "engine.update_seconds=0.5")
        options += ("collection.heartbeat_seconds=0.05", "trainer.max_steps=5", f"collection.orchestrator={place}")
        options += ("collection.retries=0", "rollout.drop_equal=false")  # the other process earns no rewards by chance
        found = run(small_run(ASYNC[0], ASYNC[3], *options))
    said = capsys.readouterr().err
    assert "took longer than engine.update_seconds=0.5; it has version 2; waiting for the engine" in said
    rows = metrics(found.dir)
    assert hung and len(rows) == 5 and sum(float(row["died_engine"] or 0) for row in rows) >= 1
    assert not any(name.startswith("failed") and float(row[name] or 0) for row in rows for name in row)
    if place == "thread":  # the output of the other process is its own
        buried = "engine cannot work: it has weights 2 in place of 3; its rollouts wait"
        assert said.index(buried) < said.rindex("engine is back")


@pytest.mark.nightly(reason="three runs on a server")
def test_runs_on_a_server_with_later_weights_begin_with_their_own_version(small_run: Compose, policy: Path) -> None:
    """One that repeats steps whose checkpoint is lost, and another one: staleness is counted in versions."""

    def versions(folder: Path) -> set[int]:
        ledger = Ledger(folder / "ledger.sqlite")
        found = {one.oldest for group in ledger.all_groups() for one in group.rollouts if one.payload}
        ledger.close()
        return found

    with serving(policy) as (address, _):
        options = (ASYNC[0], ASYNC[3], "engine=arcforge", f"engine.url={address}", "engine.stream=false")
        first = run(small_run(*options, "trainer.max_steps=4", "trainer.checkpoint_every=2"))
        shutil.rmtree(first.dir / "checkpoints" / "step-00000004")
        assert run(small_run(*options, "trainer.max_steps=5", "resume=latest")).dir == first.dir
        other = run(small_run(*options, "trainer.max_steps=2"))
    assert versions(first.dir) <= {*range(6)} and versions(other.dir) <= {0, 1, 2}
    rows = metrics(first.dir)
    assert len(rows) == 5 and all(float(row["logprob_gap"]) < 1e-5 for row in rows if row["logprob_gap"])


@pytest.mark.nightly(reason="a run on a server that starts three times; chaos kills one by default")
def test_an_engine_that_has_started_again_gets_the_present_weights_before_work(
    small_run: Compose, policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens of the first weights would end the run: their log-probs are others than those of their version."""
    with serving(policy) as (address, restart):
        publish = AsynchronousSource.publish

        def published(source: AsynchronousSource, step: int, *arguments: Any) -> bool:
            done = publish(source, step, *arguments)
            if step in (2, 4):
                restart()
            return done

        monkeypatch.setattr(AsynchronousSource, "publish", published)
        options = (
            "engine=arcforge",
            f"engine.url={address}",
            "engine.stream=false",
            "collection.heartbeat_seconds=0.05",
        )
        options += ("trainer.max_steps=6", "optimizer.lr=0.05", "collection.retries=0", "trainer.deterministic=true")
        found = run(small_run(ASYNC[0], ASYNC[3], *options))
    said = capsys.readouterr().err
    seen = said.count("it has weights 0 in place of")
    assert said.count("engine is back") >= seen >= 1, "the next weights may come before the next beat"
    rows = metrics(found.dir)
    assert len(rows) == 6 and sum(float(row["died_engine"] or 0) for row in rows) >= seen
    assert all(float(row["logprob_gap"]) < 1e-5 for row in rows if row["logprob_gap"])
