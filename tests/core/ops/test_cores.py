"""Torch's threads follow the cores that a process may use."""

import pytest

from arcforge_core.ops import cores
from arcforge_core.ops.cores import PERIOD, CoreLimit


class Machine:
    """A number of allowed cores, a number of torch threads, and a clock."""

    def __init__(self, monkeypatch, allowed, threads):
        self.allowed, self.threads, self.now, self.said = allowed, threads, 0.0, []
        monkeypatch.setattr(cores, "allowed_cores", lambda: self.allowed)
        monkeypatch.setattr(cores.torch, "get_num_threads", lambda: self.threads)
        monkeypatch.setattr(cores.torch, "set_num_threads", lambda wanted: setattr(self, "threads", wanted))
        monkeypatch.setattr(cores, "say", self.said.append)
        self.limit = CoreLimit("engine", lambda: self.now)

    def after(self, allowed, seconds=PERIOD):
        self.allowed, self.now = allowed, self.now + seconds
        self.limit.follow()
        return self.threads


def test_threads_leave_with_cores_and_return_with_them(monkeypatch):
    machine = Machine(monkeypatch, 4, 4)
    assert machine.after(2, seconds=PERIOD / 2) == 4, "not every step looks"
    assert [machine.after(allowed) for allowed in (2, 2, 1, 2, 4, 4)] == [2, 2, 1, 2, 4, 4]
    assert machine.said[0] == "engine: this process may use 2 cores now: 4 -> 2 threads, slower"
    assert machine.said[-1] == "engine: this process may use 4 cores now: 2 -> 4 threads" and len(machine.said) == 4


def test_numbers_that_someone_chose_stay(monkeypatch):
    machine = Machine(monkeypatch, 2, 4)
    assert machine.after(2) == 4 and machine.after(3) == 4, "more threads than cores, and no core is missing"
    machine = Machine(monkeypatch, 4, 4)
    machine.after(2)
    machine.threads = 1
    assert machine.after(4) == 1 and machine.after(4) == 1, "set by another part meanwhile"
    assert len(machine.said) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_that_have_cores_left_are_as_many_as_before(monkeypatch, threads):
    machine = Machine(monkeypatch, 4, threads)
    assert machine.after(2) == threads and machine.said == []
