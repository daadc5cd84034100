"""Threads while other programs take cores: chosen from measured rates, under a clock and a machine that are made up."""

import json

import pytest
import torch
from rich.console import Console

from arcforge_core.train import prepare, threads
from arcforge_core.train import run as run_module
from arcforge_core.train.callbacks import threads as callback
from arcforge_core.train.run import train
from arcforge_core.train.threads import CoreClock, ThreadControl, busy_text
from support.runs import tiny_run


class Machine:
    """Two cores. Products of n threads wait for the slowest thread: a core that is shared makes them a hundred times
    slower, as was measured; fewer threads than free cores lose nothing but speed."""

    def __init__(self, cores=2, known=True):
        self.cores, self.known = cores, known
        self.control = ThreadControl(cores)
        self.said, self.tokens, self.seconds = [], 0.0, 0.0

    def rate(self, others):
        count = self.control.threads
        return 2400.0 * count if count <= self.cores - others else 48.0

    def run(self, seconds, others):
        """Trains for a time, step by step: one has 2,048 tokens, and a period is at least three seconds."""
        end = self.seconds + seconds
        while self.seconds < end:
            rate = self.rate(others)
            period = max(3.0, 2048 / rate)
            self.tokens += rate * period
            self.seconds += period
            if said := self.control.add(rate, period, self.cores - others if self.known else None):
                self.said.append(said)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("cores", [2, 4, 16])
def test_the_rate_beside_one_busy_core_is_at_least_40_percent_of_the_quiet_one(cores, known):
    quiet = Machine(cores, known)
    quiet.run(600, others=0)
    assert quiet.said == [] and quiet.control.threads == cores
    busy = Machine(cores, known)
    busy.run(60, others=0)
    busy.run(1500, others=1)
    assert busy.tokens / busy.seconds > 0.4 * quiet.tokens / quiet.seconds


def test_a_machine_that_is_busy_from_the_start_gets_fewer_threads_after_one_period():
    machine = Machine()
    machine.run(50, others=1)
    assert machine.said == ["other programs leave 1.0 cores, 48 tokens/s: 2 -> 1 threads"]
    machine.run(300, others=1)
    assert machine.control.threads == 1 and len(machine.said) == 1, "no core is free, so none is tried"


def test_threads_return_when_cores_are_free_again():
    machine = Machine()
    machine.run(30, others=0)
    machine.run(60, others=1)
    assert machine.said == ["other programs leave 1.0 cores, 48 tokens/s after 4,800: 2 -> 1 threads"]
    machine.run(60, others=0)
    assert machine.said[1:] == ["other programs leave 2.0 cores, 2,400 tokens/s: 1 -> 2 threads"]
    assert machine.control.threads == 2


def test_without_knowledge_of_other_programs_more_threads_are_tried_ever_more_rarely():
    machine = Machine(known=False)
    machine.run(30, others=0)
    machine.run(1500, others=1)
    tried = [said for said in machine.said if "1 -> 2 threads" in said and "faster" not in said]
    assert 1 < len(tried) < 8
    assert machine.control.threads == 1 or machine.said[-1] == tried[-1]


def test_a_collapse_that_fewer_threads_do_not_mend_changes_nothing():
    control = ThreadControl(4)
    assert control.add(1000.0, 3.0, 4.0) == ""
    assert control.add(100.0, 3.0, 4.0) == "other programs leave 4.0 cores, 100 tokens/s after 1,000: 4 -> 3 threads"
    assert control.add(90.0, 3.0, 4.0) == "90 tokens/s with 3 threads is not faster: 3 -> 4 threads"
    assert [control.add(100.0, 3.0, 4.0) for _ in range(100)] == [""] * 100 and control.threads == 4


def test_free_cores_are_those_that_no_other_program_used(tmp_path, monkeypatch):
    def stat(idle, own):
        rows = [f"cpu{n} {1000 + ran} 0 0 {idle} 0 0 0 0 0 0" for n, ran in enumerate((own, 900, 999_999))]
        path.write_text("\n".join(["cpu 1 2 3", *rows, "intr 0"]))

    path, now = tmp_path / "stat", [0.0]
    monkeypatch.setattr(threads, "STAT", path)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(threads.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(threads.time, "process_time", lambda: now[0])
    path.write_text("cpu0 1000 0 0 0 0 0 0 0\ncpu1 1000 0 0 0 0 0 0 0\ncpu2 1000 0 0 0 0 0 0 0\n")
    clock = CoreClock(lambda: now[0])
    now[0] = 10.0
    stat(0, 1000)  # of two cores, one ran for us all the time, the other 9 of 10 seconds for others
    assert clock.free() == pytest.approx(1.1)
    path.unlink()
    assert clock.free() is None


def test_cores_that_are_taken_away_limit_the_threads_before_a_rate_collapses():
    control = ThreadControl(4)
    assert control.add(1000.0, 3.0, 4.0) == "" == control.allow(4.0)
    assert control.allow(1.5) == "this process may use 1.5 cores now: 4 -> 1 threads, slower"
    assert control.add(200.0, 3.0, 1.5) == "" and control.threads == 1, "no more than allowed are tried"
    assert control.allow(4.0) == "" and control.add(200.0, 3.0, 4.0).endswith("1 -> 4 threads")


def test_the_clock_sees_a_quota_that_changes(monkeypatch):
    monkeypatch.setattr(threads, "cgroup_quota", lambda: 0.5)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: {0, 1})
    clock = CoreClock()
    assert clock.cores == 0.5
    monkeypatch.setattr(threads, "cgroup_quota", lambda: float("inf"))
    clock.free()
    assert clock.cores == 2


@pytest.mark.parametrize("adapt", [True, False])
def test_a_run_follows_its_cores_and_says_so(adapt, monkeypatch):
    set_to = []
    monkeypatch.setattr(callback.torch, "set_num_threads", set_to.append)
    follower = callback.Threads(Console(), 2, adapt)
    follower.clock.cores, follower.cores, follower.tokens, follower.seconds = 1, 2, 100, 3.0
    said = follower._change(1.0)
    if adapt:
        assert said == "this process may use 1 cores now: 2 -> 1 threads, slower" and set_to == [1]
    else:
        assert said == "this process may use 1 cores now, of 2: slower" and set_to == [], "they were asked for"
    assert "now" not in follower._change(1.0), "once"


@pytest.mark.nightly(reason="a run with two threads, which takes half a minute beside another test process")
def test_a_run_says_that_the_machine_was_busy_and_which_threads_it_took(tmp_path, monkeypatch, capsys):
    before = torch.get_num_threads()
    monkeypatch.setattr(prepare, "usable_threads", lambda: 2)
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")
    monkeypatch.setattr(run_module, "matmul_rate", lambda *args: 1e9)
    monkeypatch.setattr(callback, "PERIOD", 0.0)
    monkeypatch.setattr(CoreClock, "free", lambda clock: 1.0)
    monkeypatch.setattr(ThreadControl, "_judge", lambda control, rate, before: "")
    try:
        result = train(tiny_run(tmp_path, "trainer.threads=null", "trainer.max_steps=2"))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    printed = capsys.readouterr().out
    assert "step 1: other programs leave 1.0 cores, " in printed and "2 -> 1 threads" in printed
    summary = json.loads((result.dir / "summary.json").read_text())
    assert summary["busy_share"] == 1.0
    assert "The machine was busy for 100% of the training time" in " ".join(printed.split())


def test_little_is_not_mentioned():
    busy = {"busy_share": 0.5, "cores_taken_by_others": 0.94, "cores": 2}
    assert busy_text(busy).startswith("The machine was busy for 50% of the training time: other programs took 0.9 of 2")
    assert busy_text(busy | {"busy_share": 0.05}) == busy_text({}) == ""
