"""Tests as processes: proofs, planted twins, tests that never end."""

import asyncio
import time

import pytest

from arcforge_core.contracts.sandbox import CommandStatus, ExecResult
from arcforge_rl.swe.languages.base import LIMITS, RunRequest
from arcforge_rl.swe.languages.processes import Program, opaque, run_programs

EXIT, SIGNAL, TIMEOUT = CommandStatus.EXIT, CommandStatus.SIGNAL, CommandStatus.TIMEOUT


class Box:
    """A sandbox whose programs end in given ways."""

    def __init__(self, ends):
        self.ends, self.seen = ends, []

    async def exec(self, command):
        self.seen.append(command.argv[0])
        outcome, code, text, seconds = self.ends[command.argv[0]]
        return ExecResult(outcome, code, text, b"said", seconds)


def run(ends, programs, seed="", left=100.0):
    box = Box(ends)
    request = RunRequest(box, "python3", ["f"], 100.0, seed)
    ends_at = time.monotonic() + left
    return box, asyncio.run(run_programs(request, LIMITS, programs, ends_at, lambda done: b"SKIP" in done.stdout))


PAIR = [Program("f::a", ("a",), "proof"), Program("f::a", ("twin",), "other", planted=True)]
FAILS = (EXIT, 1, b"", 0.1)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ((EXIT, 0, b"x\nproof\n", 0.1), "passed"),
        ((EXIT, 0, b"--- PASS: a\nPASS\n", 0.1), "failed"),
        ((EXIT, 0, b"noproof\n", 0.1), "failed"),
        ((EXIT, 1, b"proof\n", 0.1), "failed"),
        ((SIGNAL, 11, b"proof\n", 0.1), "failed"),
        ((EXIT, 0, b"SKIP\n", 0.1), "skipped"),
    ],
)
def test_only_a_proof_passes(end, outcome):
    _, done = run({"a": end, "twin": FAILS}, PAIR)
    assert done.whole and done.outcomes == {"f::a": outcome}
    assert ("f::a" in done.texts) == (outcome == "failed")


def test_a_twin_that_passes_ends_the_run():
    _, done = run({"a": FAILS, "twin": (EXIT, 0, b"other\n", 0.1)}, PAIR)
    assert not done.whole and "planted" in done.reason


@pytest.mark.parametrize("endless", ["a", "twin"])
def test_a_test_that_never_ends_has_failed_and_costs_its_time_once_or_twice(endless):
    ends = {"a": FAILS, "twin": FAILS, endless: (TIMEOUT, None, b"", 30.0)}
    box, done = run(ends, PAIR)
    assert done.whole and done.outcomes == {"f::a": "failed"} and box.seen.count(endless) == 1
    assert "did not end" in done.texts["f::a"] or box.seen[0] != endless


def test_order_and_bounds():
    programs = [Program(f"f::{name}", (name,), "p") for name in "abcdefgh"]
    ends = dict.fromkeys("abcdefgh", (EXIT, 0, b"p\n", 0.1))
    assert run(ends, programs)[0].seen == list("abcdefgh")
    shuffled = run(ends, programs, "seed")[0].seen
    assert sorted(shuffled) == list("abcdefgh") != shuffled == run(ends, programs, "seed")[0].seen
    orders = {tuple(run({"a": FAILS, "twin": FAILS}, PAIR)[0].seen) for _ in range(64)}
    assert orders == {("a", "twin"), ("twin", "a")}
    box, done = run(ends, programs, left=0.0)
    assert not done.whole and not box.seen and "did not end within 100 s" in done.reason
    assert len(set(opaque(5))) == 5
