"""An asynchronous run whose processes are killed at random; a test and ``benchmarks/chaos.py`` use it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from arcforge_rl.orchestrator.ledger import Ledger

STUCK = 300.0
"""Seconds without progress after which a run counts as lost."""
EARLY = 0.25
"""Share of the kills that may come before the run has made progress since its last start."""


def drive(
    start: Callable[[], int],
    ready: Callable[[], bool],
    progress: Callable[[], object],
    victims: Mapping[str, Callable[[], bool]],
    seed: int,
    every: float,
    least: int,
) -> Counter[str]:
    """Runs to the end while trainer and other processes are killed, each at least `least` times, then undisturbed.

    A start may take longer than the time between two kills, on a busy machine: a run that is only ever killed while it
    starts would never end.

    Args:
        start: begins or resumes the run in a child process; returns its process id.
        ready: whether there is something to resume.
        progress: returns something that changes with each step of the run.
        victims: how the other processes are killed, by name; each returns whether it has killed one.
        seed: of the victims and the moments.
        every: mean seconds between kills.
        least: kills of each.

    Returns:
        Kills by process.

    Raises:
        AssertionError: the run ended before, ended with an error, or made no progress.
    """
    rng, kills, before, child = random.Random(seed), Counter[str](), progress(), start()
    names = ("trainer", *victims)
    while min(kills[name] for name in names) < least:
        victim, early = rng.choice(names), rng.random() < EARLY
        last = time.monotonic() + STUCK
        while not early and progress() == before:
            code = ended(child, 0.0)
            assert code is None, f"the run ended with {code} after {dict(kills)}"
            assert time.monotonic() < last, f"no progress in {STUCK} s after {dict(kills)}"
            time.sleep(0.02)
        code = ended(child, rng.expovariate(1 / every))
        assert code is None, f"the run ended with {code} after {dict(kills)}"
        if victim != "trainer":
            kills[victim] += victims[victim]()
        elif ready():
            os.kill(child, signal.SIGKILL)
            assert ended(child, 10.0) == -signal.SIGKILL
            kills[victim] += 1
            before, child = progress(), start()
    code = finished(child, progress)
    assert code == 0, f"the run ended with {code} after its last kill"
    return kills


def finished(child: int, progress: Callable[[], object]) -> int | None:
    """Returns the exit code of a child at its end; None if it makes no progress for `STUCK` seconds."""
    before, last = progress(), time.monotonic() + STUCK
    while (code := ended(child, 0.2)) is None:
        now = progress()
        if now != before:
            before, last = now, time.monotonic() + STUCK
        elif time.monotonic() > last:
            return None
    return code


def ended(child: int, seconds: float) -> int | None:
    """Returns the exit code of a child, negative for a signal; None if it has not ended after some seconds."""
    last = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > last:
            return None
        time.sleep(0.005)


def killed_service(path: Path) -> bool:
    """Kills the task service whose process id is in a file; returns False if it is no more."""
    try:
        pid = int(path.read_text())
        if "even_service" not in command_of(pid):
            return False
        os.kill(pid, signal.SIGKILL)
    except (OSError, ValueError):
        return False
    return True


def forked(parent: int) -> list[int]:
    """Returns the processes that multiprocessing's fork server runs for a process."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, found = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(stat.parent.name)] = int(found)
    servers = {pid for pid, of in parents.items() if of == parent and "forkserver" in command_of(pid)}
    return sorted(pid for pid, of in parents.items() if of in servers)


def command_of(pid: int) -> str:
    """Returns the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def killed_fork(parent: int, rng: random.Random) -> bool:
    """Kills one of the processes that `forked` returns; returns False if there is none."""
    found = forked(parent)
    if not found:
        return False
    with suppress(ProcessLookupError):
        os.kill(rng.choice(found), signal.SIGKILL)
        return True
    return False


def checked(path: Path) -> dict[str, int]:
    """Returns the number of rollouts by state and reason, from the ledger of a run that has ended.

    Raises:
        AssertionError: a rollout that was trained on lacks its tokens, verdict or batch, one was dropped without a
            reason, one is in a batch that was never trained on, or batches are missing.
    """
    ledger = Ledger(path)
    groups, batches = ledger.all_groups(), ledger.batches()
    of_batches = [ledger.of_batch(step)[0] for step in range(batches)]
    ledger.close()
    counts: Counter[str] = Counter()
    for group in groups:
        for one in group.rollouts:
            name = f"{group.key.step}/{group.key.number}/{one.place}"
            reasons = {"dropped": one.reason is not None, "admitted": True}  # one that was cut off waits with a reason
            assert reasons.get(one.state, one.reason is None), f"{name} is {one.state} with {one.reason}"
            assert one.state != "trained" or (one.payload and one.outcome and one.copies), f"{name} was trained on"
            counts[f"dropped: {one.reason}" if one.state == "dropped" else one.state] += 1
    trained = [(one.key, one.place) for of in of_batches for group in of for one in group.rollouts if one.copies]
    assert len(trained) == len(set(trained)) == counts["trained"] + counts["batched"], "trained on twice, or lost"
    return dict(counts)
