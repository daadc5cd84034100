"""Queued test runs that survive ``kill -9`` with the cores busy, and the price of prepared worlds.

    python benchmarks/execution.py [--quick] [--threads N] [--json FILE] [--jobs N] [--kills N]

Aims: 2,000 queued runs on 2 cores, of which none is lost or has two results, with at least 85% of the cores busy; a
prepared SWE world opens in at most 300 ms (median) and takes at most 64 MiB while nothing runs in it.

A run is a stub: a program that computes for about 60 ms, leaves a file and ends with a code of its own. The service is
another process; it is killed when equal shares of the runs are done, and started again on its queue. Busy is what the
kernel counts on the cores (``/proc/stat``), of all programs, so the machine must be quiet otherwise; time in which no
service lives, from a kill until the next one runs its first command, is left out of `busy` and counts in
`busy_with_restarts`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _machine import describe_machine
from arcforge_core.contracts.sandbox import Command, Sandbox
from arcforge_rl.configs.commands import BubblewrapConfig
from arcforge_rl.execution.jobs import ExecutionJob
from arcforge_rl.execution.queue import JobQueue
from arcforge_rl.execution.service import ExecutionService
from arcforge_rl.sandbox.bubblewrap import Bubblewrap
from arcforge_rl.sandbox.python import python_inside
from arcforge_rl.swe.languages.base import WORKDIR
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.running import opened

WORK = 20_000
"""Rounds of a stub's loop."""
CODES = 3
FILES, LINES = 800, 120
"""Of the repository in a prepared world: about 4 MB."""
WORLDS = 32


def stub(number: int, work: int) -> ExecutionJob:
    """Returns a run whose code and output say which one it is."""
    loop = f"i=0; while [ $i -lt {work} ]; do i=$((i+1)); done; cat name > left; cat left; exit {number % CODES}"
    return ExecutionJob(f"run-{number}", Command(("/bin/sh", "-c", loop)), {"name": f"{number}\n".encode()})


def bubblewrap() -> Bubblewrap:
    """Returns the backend."""
    return Bubblewrap(BubblewrapConfig(read_only=python_inside()[1]))


async def serve(path: Path, jobs: int, work: int, concurrency: int) -> None:
    """Queues runs, those that are new, and works until all are done."""
    async with bubblewrap() as backend, ExecutionService(backend, path, concurrency) as service:
        service.submit(stub(number, work) for number in range(jobs))
        async for _ in service.results():
            pass


@dataclass
class Busy:
    """Seconds of processors, by what they did."""

    cores: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))

    def now(self) -> tuple[float, float]:
        """Returns the busy and all seconds of the cores since the system started."""
        busy = total = 0.0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *rest = line.split()
            if name.startswith("cpu") and name != "cpu" and int(name[3:]) in self.cores:
                ticks = [int(value) for value in rest[:8]]
                total += sum(ticks)
                busy += sum(ticks) - ticks[3] - ticks[4]  # idle, and idle that waits for a disk
        return busy, total


def done_in(path: Path) -> int:
    """Returns the number of results in a queue that another process owns."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
    except sqlite3.OperationalError:
        return 0
    try:
        ((count,),) = connection.execute("SELECT count(*) FROM results")
        return int(count)
    except sqlite3.OperationalError:  # the service has not created its tables
        return 0
    finally:
        connection.close()


def queued_runs(jobs: int, kills: int, work: int, concurrency: int) -> dict[str, Any]:
    """Works a queue off, with kills, and returns what became of the runs and how busy the cores were.

    Raises:
        RuntimeError: a service ended by itself before its work was done.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "queue.db")
        words = [sys.executable, __file__, "--serve", str(path), str(jobs), str(work), str(concurrency)]
        meter, used, all_of_it = Busy(), 0.0, 0.0
        begun = time.monotonic()
        whole = meter.now()
        for life in range(kills + 1):
            before = done_in(path)
            target = jobs * (life + 1) // (kills + 1)
            process = subprocess.Popen(words)
            while done_in(path) <= before and process.poll() is None:
                time.sleep(0.02)
            at = meter.now()
            while (process.poll() is None) and (life == kills or done_in(path) < target):
                time.sleep(0.02)
            now = meter.now()
            used, all_of_it = used + now[0] - at[0], all_of_it + now[1] - at[1]
            if life < kills and process.poll() is None:
                process.send_signal(signal.SIGKILL)
            code = process.wait()
            if code not in (0, -signal.SIGKILL) or (life == kills and code):
                raise RuntimeError(f"the service ended with {code}")
        end = meter.now()
        seconds = time.monotonic() - begun
        queue = JobQueue(path)
        results = []
        while found := list(queue.results(results[-1].number if results else 0)):
            results += found
        progress = queue.progress()
        queue.close()
    right = sum(
        one.result is not None
        and one.result.code == int(one.id[4:]) % CODES
        and one.result.stdout == f"{one.id[4:]}\n".encode()
        for one in results
    )
    return {
        "jobs": jobs, "kills": kills, "concurrency": concurrency, "seconds": seconds, "per_second": jobs / seconds,
        "lost": jobs - len({one.id for one in results}), "doubled": len(results) - len({one.id for one in results}),
        "right": right, "unfinished": progress["queued"] + progress["running"],
        "started_again": sum(one.attempts > 1 for one in results),
        "busy": used / all_of_it, "busy_with_restarts": (end[0] - whole[0]) / (end[1] - whole[1]),
    }  # fmt: skip


def repository(folder: Path) -> Path:
    """Writes a repository of modules and tests, and returns it."""
    for number in range(FILES):
        place = folder / f"package_{number % 20}"
        place.mkdir(parents=True, exist_ok=True)
        lines = [f"def function_{line}(value):\n    return value + {line}\n" for line in range(LINES)]
        (place / f"module_{number}.py").write_text("\n".join(lines))
    return folder


def memory_of(root: int) -> int:
    """Returns the bytes of a process and of all below it, shared pages by their share (PSS)."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    total = 0
    for number in parents:
        above = number
        while above != root and above in parents:
            above = parents[above]
        if above == root:
            try:
                lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def shared_memory() -> int:
    """Returns the bytes of files in memory, of the whole machine: those of sandboxes are there too."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Shmem:"))


async def worlds(count: int) -> dict[str, Any]:
    """Opens prepared worlds, in which pytest can run, and keeps them; returns seconds of each and bytes of an idle one.

    A world counts as open when a command has run in it.
    """
    python = language_of("python")
    with tempfile.TemporaryDirectory() as place:
        tree, layers = repository(Path(place, "tree")), python.shown(())
        async with bubblewrap() as backend:
            first = await _opened(backend, tree, layers)
            before = memory_of(backend.client.process.pid) + shared_memory()
            seconds, kept = [], list[Sandbox]()
            for _ in range(count):
                start = time.perf_counter()
                kept.append(await _opened(backend, tree, layers))
                seconds.append(time.perf_counter() - start)
            after = memory_of(backend.client.process.pid) + shared_memory()
            for sandbox in (first, *kept):
                await sandbox.stop()
    return {
        "worlds": count, "files": FILES, "open_p50_ms": statistics.median(seconds) * 1e3,
        "open_max_ms": max(seconds) * 1e3, "idle_mib": (after - before) / count / 2**20, "all_seconds": seconds,
    }  # fmt: skip


async def _opened(backend: Bubblewrap, tree: Path, layers: Any) -> Sandbox:
    sandbox = await opened(backend, language_of("python"), tree, layers)
    done = await sandbox.exec(Command(("/bin/sh", "-c", "test -f package_0/module_0.py"), cwd=WORKDIR))
    assert done.ok, done
    return sandbox


def main() -> None:
    """Measures the queue, then worlds."""
    if sys.argv[1:2] == ["--serve"]:
        path, jobs, work, concurrency = sys.argv[2:]
        asyncio.run(serve(Path(path), int(jobs), int(work), int(concurrency)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 runs and one kill, 8 worlds")
    parser.add_argument("--threads", type=int, default=2, help="for the description of the machine")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--jobs", type=int, help="runs (default: 2,000)")
    parser.add_argument("--kills", type=int, help="of the service (default: 3)")
    parser.add_argument("--concurrency", type=int, help="runs at a time (default: one more than cores)")
    options = parser.parse_args()
    jobs = options.jobs or (200 if options.quick else 2_000)
    kills = options.kills if options.kills is not None else (1 if options.quick else 3)
    concurrency = options.concurrency or len(os.sched_getaffinity(0)) + 1
    report: dict[str, Any] = {"benchmark": "execution", "machine": describe_machine(options.threads)}
    for name, take in (
        ("queue", lambda: queued_runs(jobs, kills, WORK, concurrency)),
        ("worlds", lambda: asyncio.run(worlds(8 if options.quick else WORLDS))),
    ):
        report[name] = take()
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))
    queue, world = report["queue"], report["worlds"]
    print(f"{jobs} runs, {kills} kills: {queue['lost']} lost, {queue['doubled']} doubled, {queue['right']} right, "
          f"{queue['started_again']} started again, {queue['per_second']:.1f} a second")  # fmt: skip
    print(f"cores busy {queue['busy']:.1%} (aim: 85%), with restarts {queue['busy_with_restarts']:.1%}")
    print(f"world of {world['files']} files: open p50 {world['open_p50_ms']:.0f} ms (aim: 300), "
          f"most {world['open_max_ms']:.0f} ms; idle {world['idle_mib']:.1f} MiB (aim: 64)")  # fmt: skip


if __name__ == "__main__":
    main()
