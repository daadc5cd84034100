"""The orchestrator as a process of its own: the same weights, whoever is killed, and nothing is left running."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.rl.orchestrator.test_source import lines
from tests.rl.trainer.conftest import Compose, learnable, no_drawing, policy, small_run
from tests.rl.trainer.test_run import metrics, weights

from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.orchestrator.ledger import Ledger
from arcforge_rl.orchestrator.process import source as process_source
from arcforge_rl.orchestrator.process.source import ProcessSource
from arcforge_rl.orchestrator.source import AsynchronousSource
from arcforge_rl.trainer.run import run
from support.orchestrated import build_hanging, build_learnable, build_silent, serving, silent_sampler
from support.run_chaos import checked
from support.waiting import wait_until

__all__ = ["learnable", "no_drawing", "policy", "small_run"]
SYNCHRONOUS = ("collection=async", "collection.eta=0", "collection.reset_optimizer=false", "evaluation.tasks=0")
PROCESS = "collection.orchestrator=process"


@pytest.fixture
def address(policy: Path) -> Iterator[str]:
    with serving(policy) as (found, _):
        yield found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Process ids of the orchestrators that were started."""
    found: list[int] = []
    start = ProcessSource._start

    def started(source: ProcessSource) -> Any:
        life = start(source)
        found.append(life.pid)
        return life

    monkeypatch.setattr(ProcessSource, "_start", started)
    return found


@pytest.mark.nightly(reason="two runs on a server, and their orchestrators")
def test_a_server_that_had_a_longer_run_serves_another_one(small_run: Compose, tmp_path: Path, address: str) -> None:
    """Its versions begin at 0 again; the orchestrator's client has met those of the run before."""
    options = ("engine=arcforge", f"engine.url={address}", *SYNCHRONOUS, PROCESS, "trainer.checkpoint_every=100")
    quick = ("collection.heartbeat_seconds=0.05", "collection.dead_seconds=2", "rollout.drop_equal=false")
    for steps in (12, 6):
        ended = run(small_run(*options, *quick, f"trainer.max_steps={steps}", f"output_dir={tmp_path / str(steps)}"))
        assert len(metrics(ended.dir)) == steps


def test_a_finished_step_wants_the_weights_that_the_trainer_gave() -> None:
    """A client that has not given them knows those of an earlier run; one that has needs no word."""
    wanted: list[int] = []
    engine = SimpleNamespace(weight_version=2500)
    source: Any = SimpleNamespace(engine=engine, want=wanted.append, _call=lambda work: work.close())
    source.collector = SimpleNamespace(finished_step=lambda version: None)
    AsynchronousSource.finished(source, 1, 1)
    AsynchronousSource.finished(source, 1)
    assert wanted == [1, 2500]


@pytest.mark.nightly(reason="two runs on a server, and several processes; test_chaos.py kills them by default")
@pytest.mark.parametrize("seed", [1])
def test_killed_at_random_it_ends_in_the_weights_of_a_thread_bit_for_bit(
    small_run: Compose, tmp_path: Path, address: str, lives: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Without staleness. Kills meet it while it plays, between batch and update, and while it answers."""
    monkeypatch.setattr(process_source, "build_source", build_learnable)
    rng, kills, timers = random.Random(seed), [0], list[threading.Timer]()

    def kill() -> None:
        kills[0] += 1
        os.kill(lives[-1], signal.SIGKILL)

    def disturbed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(source: ProcessSource, *arguments: Any) -> Any:
            if rng.random() < 0.6:
                timers.append(threading.Timer(rng.random() * 0.05, kill))
                timers[-1].start()
            return method(source, *arguments)

        return call

    options = (*SYNCHRONOUS, "engine=arcforge", f"engine.url={address}", "engine.stream=false")
    options += ("trainer.deterministic=true", "trainer.max_steps=4", "rollout.refills=50")
    threaded = run(small_run(*options, f"output_dir={tmp_path / 'thread'}"))
    for name in ("take", "publish"):
        monkeypatch.setattr(ProcessSource, name, disturbed(getattr(ProcessSource, name)))
    apart = run(small_run(*options, PROCESS, f"output_dir={tmp_path / 'process'}"))
    for timer in timers:
        timer.join()
    first, second = weights(threaded.dir), weights(apart.dir)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert lines(threaded.dir) == lines(apart.dir)
    assert kills[0] >= 3 and len(lives) > 3
    assert sum(int(row["orchestrator_restarts"]) for row in metrics(apart.dir)) >= 2
    counts = checked(apart.dir / "ledger.sqlite")
    assert counts["trained"] == sum(line["learnt"] for line in lines(apart.dir)) and "batched" not in counts
    assert not any(map(alive, lives))


def silent(small_run: Compose, folder: Path, *options: str) -> ProcessSource:
    """Returns a source whose rollouts never end, not begun."""
    url = ("engine=arcforge", "engine.url=http://127.0.0.1:9", f"output_dir={folder}")
    config: Any = small_run(*SYNCHRONOUS[:1], *url, PROCESS, *options)
    return ProcessSource(config.collection, silent_sampler(config), build_silent)


def waiting(folder: Path) -> set[tuple[str, str | None]]:
    """Returns states and reasons of the rollouts of open groups, from a ledger that no process holds."""
    ledger = Ledger(folder / "ledger.sqlite")
    found = {(one.state, one.reason) for group in ledger.open_groups() for one in group.rollouts}
    ledger.close()
    return found


@pytest.mark.slow(reason="a trainer of its own imports everything again")
def test_a_trainer_that_is_killed_leaves_nothing_running(small_run: Compose, tmp_path: Path) -> None:
    def train(sender: Any) -> None:
        forkserver._forkserver._forkserver_pid = None  # type: ignore[attr-defined]  # it is this process's parent's
        source = silent(small_run, tmp_path)
        source.begin(0, tmp_path, lambda: None)
        sender.send(source._present().pid)
        time.sleep(60)

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    trainer = context.Process(target=train, args=(sender,))
    trainer.start()
    sender.close()
    orchestrator = receiver.recv()
    assert alive(orchestrator)
    trainer.kill()
    trainer.join()
    wait_until(lambda: not alive(orchestrator))
    assert waiting(tmp_path) == {("admitted", "the trainer has ended")}


def test_an_orchestrator_whose_trainer_is_silent_ends(small_run: Compose, tmp_path: Path) -> None:
    source = silent(small_run, tmp_path, "collection.heartbeat_seconds=0.1", "collection.dead_seconds=1")
    source.begin(0, tmp_path, lambda: None)
    life = source._present()
    source._closing = True  # as a trainer that stands still replaces nothing
    life._interval = 1000.0
    wait_until(lambda: not alive(life.pid))
    life._thread.join()
    assert waiting(tmp_path) == {("admitted", "the trainer has not been heard for 1 s")}


def test_one_that_hangs_is_killed_and_another_one_continues(
    small_run: Compose,
    tmp_path: Path,
    lives: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    short, start = ("collection.heartbeat_seconds=0.1", "collection.dead_seconds=0.5"), ProcessSource._start

    def started(source: ProcessSource) -> Any:
        if lives:  # a busy machine may delay the second one
            object.__setattr__(source.config, "dead_seconds", 600.0)
        return start(source)

    monkeypatch.setattr(ProcessSource, "_start", started)
    config: Any = small_run("collection=async", PROCESS, *short, "engine=arcforge", f"output_dir={tmp_path}")
    source = ProcessSource(config.collection, silent_sampler(config), build_hanging)
    source.begin(0, tmp_path, lambda: None)
    wait_until(lambda: len(lives) == 2)
    first, second = lives
    assert not alive(first) and alive(second)
    assert "the orchestrator has not answered for 0.5 s; restarting" in capsys.readouterr().err
    source.stop()
    assert not alive(second)


def test_one_that_starts_while_the_engine_is_gone_waits_for_it(
    small_run: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that fails takes both."""
    monkeypatch.setattr(process_source, "PAUSE", 0.01)
    source, start = silent(small_run, tmp_path), ProcessSource._start
    source.begin(0, tmp_path, lambda: None)
    missing = ["cannot be reached: refused"] * 3

    def started(source: ProcessSource) -> Any:
        if missing:
            raise ConfigError("engine.url", "http://x", missing.pop())
        return start(source)

    monkeypatch.setattr(ProcessSource, "_start", started)
    first = source._present()
    os.kill(first.pid, signal.SIGKILL)
    second = wait_until(lambda: source._life is not first and source._present())
    assert alive(second.pid) and not missing and source.restarts == 1
    assert capsys.readouterr().err.count("waits for the engine: engine.url='http://x': cannot be reached") == 3
    missing += ["is of another model"]
    monkeypatch.setattr(process_source, "GIVE_UP", 0)
    os.kill(second.pid, signal.SIGKILL)
    with pytest.raises(ConfigError, match="is of another model"):
        source.take(0)
    source.stop()


def test_one_that_ends_again_and_again_ends_the_run(
    small_run: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_source, "MOST_SHORT_LIVES", 1)
    source = silent(small_run, tmp_path)
    source.begin(0, tmp_path, lambda: None)
    first = source._present()
    os.kill(first.pid, signal.SIGKILL)
    os.kill(wait_until(lambda: source._life is not first and source._present()).pid, signal.SIGKILL)
    with pytest.raises(ArcforgeError, match="the orchestrator has ended, 2 times in a row"):
        source.take(0)
    source.stop()


def test_what_it_cannot_be_is_refused_before_work(small_run: Compose, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine='paged': has no URL.*engine=arcforge"):
        run(small_run("collection=async", "engine=paged", "evaluation.tasks=0", PROCESS))
    config: Any = small_run("collection=async", PROCESS, "engine=arcforge", "collection.adaptive=true")
    with pytest.raises(ConfigError, match=r"collection\.adaptive=True: engine=arcforge does not report the pages"):
        ProcessSource(config.collection, silent_sampler(config), build_silent)  # its error comes over
    with pytest.raises(ConfigError, match=r"collection\.dead_seconds=0\.5: must be between 1 and"):
        small_run("collection=async", "collection.dead_seconds=0.5")
    with pytest.raises(ConfigError, match=r"collection\.orchestrator='ray'"):
        small_run("collection=async", "collection.orchestrator=ray")
