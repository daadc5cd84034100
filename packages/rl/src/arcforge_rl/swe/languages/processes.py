"""Tests of compiled languages: each is a process of its own, proves its end by a secret, and has a twin that must fail.

A test runs in a wrapper that prints a secret when the test returned without a failure, so that code under test which
ends the process early proves nothing. A planted twin runs the same test and then fails: code that keeps failures from
being noticed makes it pass. Wrappers have names drawn at random, and the two run in an order drawn at random, so that
neither name nor order tells them apart.

Builds and tests share the time of a run. A run that it ends is late, and a test that its own limit ends is named:
whose doing that is, the environment finds out.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from arcforge_core.contracts.sandbox import Command, CommandStatus, ExecResult, SandboxLimits
from arcforge_rl.swe.languages.base import WORKDIR, RunRequest
from arcforge_rl.swe.results import FAILED, PASSED, SKIPPED, TestRun

LONGEST_TEST = 30.0
"""Seconds of one test; its twin is not run if it takes longer, nor the test if its twin does."""
LONGEST_TEXT = 2000
"""Characters of a failure that are kept."""


@dataclass(frozen=True)
class Program:
    """One test as a process.

    Attributes:
        test: ``FILE::NAME``.
        argv: of the process.
        proof: line of its standard output once the test has passed.
        planted: it must fail.
        cwd: working directory.
        env: variables.
    """

    test: str
    argv: Sequence[str]
    proof: str
    planted: bool = False
    cwd: str = WORKDIR
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wrapper:
    """A function around a test function.

    Attributes:
        test: function that it calls.
        name: its own.
        proof: line that it prints if the test noted no failure.
        planted: it fails after the test.
        made, wanted: numbers that differ: a planted one compares them.
    """

    test: str
    name: str
    proof: str
    planted: bool
    made: int
    wanted: int


class RunLate(Exception):
    """The time of a run has ended during its build."""


@dataclass(frozen=True)
class Building:
    """The build of a run.

    Attributes:
        request: the run.
        limits: of the language.
        ends: `time.monotonic` at which the run must have ended.
    """

    request: RunRequest
    limits: SandboxLimits
    ends: float

    async def exec(self, argv: Sequence[str], cwd: str = WORKDIR, env: Mapping[str, str] | None = None) -> ExecResult:
        """Runs one command, for as long as the run may last.

        Raises:
            RunLate: it has not ended then.
            SandboxFault: the sandbox broke.
        """
        left = self.ends - time.monotonic()
        if left > 0:
            # a process counts the time of all its threads: so the clock ends it first
            bound = replace(self.limits, wall_seconds=left, cpu_seconds=left * (os.cpu_count() or 1))
            done = await self.request.sandbox.exec(Command(argv, cwd=cwd, env=env or {}, limits=bound))
            if done.outcome is not CommandStatus.TIMEOUT:
                return done
        raise RunLate(f"the build did not end within {self.request.seconds:g} s")


@dataclass
class Built:
    """The products of a build.

    Attributes:
        programs: tests and their twins.
        lost: file without a program -> why.
        skipped: tests that are not to be run.
    """

    programs: list[Program] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def opaque(count: int) -> list[str]:
    """Returns identifiers drawn at random, none of which tells what it is for."""
    return [f"T{secrets.token_hex(8)}" for _ in range(count)]


def twins(tests: Sequence[str]) -> list[Wrapper]:
    """Returns two wrappers for each test, one of them planted, in an order drawn at random."""
    found = []
    for test in tests:
        for name, planted in zip(opaque(2), (False, True), strict=True):
            made = secrets.randbelow(100)
            wanted = made + 1 + secrets.randbelow(9)
            found.append(Wrapper(test, name, secrets.token_hex(16), planted, made, wanted))
    return sorted(found, key=lambda wrapper: wrapper.name)


async def built_run(
    request: RunRequest,
    limits: SandboxLimits,
    build: Callable[[Building], Awaitable[Built]],
    skipped: Callable[[ExecResult], bool] = lambda done: False,
) -> TestRun:
    """Builds programs and runs them within the time of a run.

    Args:
        request: the run.
        limits: of the language.
        build: makes the programs.
        skipped: whether a process without proof skipped its test.

    Raises:
        SandboxFault: the sandbox broke.
    """
    ends = time.monotonic() + request.seconds
    try:
        built = await build(Building(request, limits, ends))
    except RunLate as late:
        return TestRun(reason=str(late), late=True)
    run = await run_programs(request, limits, built.programs, ends, skipped)
    return replace(
        run,
        outcomes={**run.outcomes, **dict.fromkeys(built.skipped, SKIPPED)},
        texts={**run.texts, **built.lost},
        uncollected=tuple(built.lost),
    )


async def run_programs(
    request: RunRequest,
    limits: SandboxLimits,
    programs: Sequence[Program],
    ends: float,
    skipped: Callable[[ExecResult], bool] = lambda done: False,
) -> TestRun:
    """Runs processes one after the other, and returns a run that is not whole unless every planted one failed.

    Args:
        request: the run; its seed decides the order of tests, chance that of a test and its twin.
        limits: of the language.
        programs: tests and their twins.
        ends: `time.monotonic` at which the run must have ended.
        skipped: whether a process without proof skipped its test.

    Raises:
        SandboxFault: the sandbox broke.
    """
    outcomes: dict[str, str] = {}
    texts: dict[str, str] = {}
    endless: set[str] = set()
    tests = {program.test for program in programs}
    place = {test: hashlib.sha256(f"{request.seed} {test}".encode()).digest() for test in tests if request.seed}
    chance = random.SystemRandom()
    late = TestRun(outcomes, texts, reason=f"the run did not end within {request.seconds:g} s", late=True)
    drawn = sorted(programs, key=lambda program: (place.get(program.test, b""), program.test, chance.random()))
    for program in drawn:
        if program.test in endless:
            continue
        left = ends - time.monotonic()
        if left <= 0:
            return late
        seconds = min(left, LONGEST_TEST)
        bound = replace(limits, wall_seconds=seconds, cpu_seconds=seconds)
        done = await request.sandbox.exec(Command(program.argv, cwd=program.cwd, env=program.env, limits=bound))
        if done.outcome is not CommandStatus.EXIT and done.seconds >= 0.9 * seconds:
            if seconds < LONGEST_TEST:
                return late
            endless.add(program.test)
            outcomes[program.test], texts[program.test] = FAILED, f"the test did not end within {seconds:.0f} s"
            continue
        proved = done.ok and program.proof.encode() in done.stdout.split(b"\n")
        if program.planted and proved:
            return TestRun(outcomes, texts, reason="a planted test that fails was not reported as failed")
        if not program.planted:
            outcomes[program.test] = PASSED if proved else SKIPPED if skipped(done) else FAILED
            if outcomes[program.test] == FAILED:
                how = f"{done.outcome.value} {'' if done.code is None else done.code}".strip()
                said = (done.stdout + b"\n" + done.stderr).decode(errors="replace").strip()
                texts[program.test] = (said or f"the process ended with {how}")[-LONGEST_TEXT:]
    return TestRun(outcomes, texts, whole=True, endless=frozenset(endless))
