"""Builds, and tests as processes: proofs, planted twins, builds and tests that never end."""

import asyncio
import os
import time

import pytest

from arcforge_core.contracts.sandbox import CommandStatus, ExecResult
from arcforge_rl.swe.languages.base import LIMITS, RunRequest
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.languages.processes import Built, Program, built_run, opaque, run_programs

EXIT, SIGNAL, TIMEOUT = CommandStatus.EXIT, CommandStatus.SIGNAL, CommandStatus.TIMEOUT


class Box:
    """A sandbox whose programs end in given ways."""

    def __init__(self, ends):
        self.ends, self.seen, self.limits = ends, [], []

    async def exec(self, command):
        self.seen.append(command.argv[0])
        self.limits.append(command.limits)
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
    assert done.endless == {"f::a"}
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


def test_a_test_that_the_end_of_the_run_ends_is_late():
    ends = dict.fromkeys(("a", "twin"), (TIMEOUT, None, b"", 5.0))
    box, done = run(ends, PAIR, left=5.0)
    assert done.late and not done.whole and not done.endless and len(box.seen) == 1


def built(end, seconds=100.0):
    """Returns the sandbox and run of a build by one command, `make`, which ends in a given way."""

    async def build(building):
        await building.exec(("make",))
        return Built(PAIR, {"g": "it does not compile"}, ["f::b"])

    box = Box({"make": end, "a": (EXIT, 0, b"proof\n", 0.1), "twin": FAILS})
    return box, asyncio.run(built_run(RunRequest(box, "python3", ["f", "g"], seconds), LIMITS, build))


def test_a_build_that_ends_as_it_likes_has_a_verdict():
    box, done = built((EXIT, 2, b"", 0.1))
    assert done.whole and not done.late and done.outcomes == {"f::a": "passed", "f::b": "skipped"}
    assert done.uncollected == ("g",) and done.texts == {"g": "it does not compile"}
    limits = box.limits[0]
    assert 99 < limits.wall_seconds <= 100 and limits.cpu_seconds == limits.wall_seconds * os.cpu_count()


def test_a_build_that_the_time_limit_ends_is_late():
    for end, seconds, seen in (((TIMEOUT, None, b"", 100.0), 100.0, ["make"]), (FAILS, 0.0, [])):
        box, done = built(end, seconds)
        assert done.late and not done.whole and not done.outcomes and box.seen == seen
        assert done.reason == f"the build did not end within {seconds:g} s"


class Compiler:
    """A sandbox of one test file, whose compilers never end."""

    def __init__(self, text):
        self.text = text

    async def read(self, path):
        return self.text.encode()

    async def write(self, path, data):
        pass

    async def exec(self, command):
        said = b'{"TestGoFiles": ["a_test.go"]}' if command.argv[:2] == ("go", "list") else b""
        compiles = command.argv[0] == "cargo" or command.argv[:2] == ("go", "test") or "-g -c" in command.argv[-1]
        return ExecResult(TIMEOUT, None, b"", b"", 50.0) if compiles else ExecResult(EXIT, 0, said, b"", 0.1)


@pytest.mark.parametrize(
    ("language", "path", "text"),
    [
        ("c", "tests/test_a.c", "int main(void) { return 0; }\n"),
        ("cpp", "tests/test_a.cc", "int main() { return 0; }\n"),
        ("go", "a_test.go", 'package a\n\nimport "testing"\n\nfunc TestA(t *testing.T) {}\n'),
        ("rust", "tests/a.rs", "#[test]\nfn a() {}\n"),
    ],
)
def test_a_compiler_that_never_ends_fails_no_test(language, path, text):
    request = RunRequest(Compiler(text), "python3", [path], 50.0)
    done = asyncio.run(language_of(language).run(request))
    assert done.late and not done.whole and not done.outcomes and not done.uncollected
