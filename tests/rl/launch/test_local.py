"""``launcher=local``, end to end: one command ends in the rewards of a run without it, whatever is killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rl.trainer.conftest import policy

from support import even_service
from support.run_chaos import checked

__all__ = ["policy"]
SECONDS = 600.0
STEPS = 6
PROGRAM = Path(__file__).parents[2] / "support" / "agent_program.py"
READABLE = [path for path in (sys.prefix, sys.base_prefix, str(PROGRAM.parent)) if not path.startswith("/usr")]
SANDBOXED = (
    "harness=command", f"harness.command='{sys.executable} {PROGRAM} plain {{model}} {{prompt_file}}'",
    f"harness.read_only={json.dumps(READABLE)}", "harness.concurrency=4",
)  # fmt: skip
"""Another program, whose sandbox reaches the gateway's socket alone."""


def small(policy: Path, output_dir: Path, *options: str) -> list[str]:
    """Returns the options of a run of seconds without staleness, whose service rewards every other reply."""
    service = [sys.executable, even_service.__file__, str(output_dir.with_suffix(".pid")), "0.02"]
    return [
        f"init={policy}", "environment=copy", "collection=async", "collection.eta=0", "collection.max_staleness=0",
        "optimizer=torch_adamw", "optimizer.lr=0.003", "hardware=torch_cpu", f"output_dir={output_dir}",
        "rollout.groups=4", "rollout.group_size=4", "rollout.max_new_tokens=3", "evaluation.tasks=0",
        f"trainer.max_steps={STEPS}", "trainer.micro_batch_tokens=128", "trainer.deterministic=true",
        "trainer.checkpoint_every=1", "trainer.threads=1", f"+collection.services.even.command={json.dumps(service)}",
        *options,
    ]  # fmt: skip


def trained(
    python: str, options: list[str], cwd: Path, during: Callable[[Any], None] | None = None, code: int = 0
) -> tuple[Path, str]:
    """Runs ``arcforge-rl`` to its end; returns the run's folder and what was said on standard error.

    Args:
        python: runs it.
        options: of the command.
        cwd: its folder.
        during: called with the process.
        code: that it must end with.
    """
    line = [python, "-m", "arcforge_core", "rl", *options]
    pipe, environment = subprocess.PIPE, {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(line, cwd=cwd, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            if during is not None:
                during(process)
            printed, said = process.communicate(timeout=SECONDS)
        except AssertionError as error:
            process.terminate()
            raise AssertionError("\n".join(process.communicate())) from error
        finally:
            process.kill()
    assert process.returncode == code, f"{printed}\n{said}"
    return folder_of(options), said


def folder_of(options: list[str]) -> Path:
    """Returns the folder of the only run of these options."""
    output_dir = next(Path(option.partition("=")[2]) for option in options if option.startswith("output_dir="))
    (found,) = output_dir.glob("[0-9]*/*-rl")
    return found


def ready(process: Any, output_dir: Path, steps: int = 1) -> Path:
    """Waits until a run has made steps; returns its folder."""
    last = time.monotonic() + SECONDS
    while not (found := list(output_dir.glob("[0-9]*/*-rl/checkpoints/step-*"))) or len(rows(found[0])) < steps:
        assert time.monotonic() < last and process.poll() is None, "no step"
        time.sleep(0.05)
    return found[0].parents[1]


def rows(checkpoint: Path) -> list[str]:
    return (checkpoint.parents[1] / "metrics.csv").read_text().splitlines()[1:]


def rewards(run: tuple[Path, str]) -> list[Any]:
    lines = map(json.loads, (run[0] / "rollouts.jsonl").read_text().splitlines())
    return [[line[name] for name in ("step", "rollout", "task", "rewards", "learnt")] for line in lines]


def processes(folder: Path) -> dict[str, int]:
    """Returns the processes of a run by role: those that write to its logs and lead a session."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            log = Path(os.readlink(entry / "fd" / "1"))
            if log.parent == folder / "launch" and os.getsid(int(entry.name)) == int(entry.name):
                found[log.stem] = int(entry.name)
        except (OSError, ValueError):  # no process, or one that has ended
            continue
    return found


@pytest.mark.nightly(reason="three runs of several processes")
@pytest.mark.timeout(3 * SECONDS)
def test_it_ends_in_the_rewards_of_one_process_whoever_is_killed(policy: Path, tmp_path: Path) -> None:
    alone = trained(sys.executable, small(policy, tmp_path / "alone", "engine=paged"), tmp_path)
    calm = trained(sys.executable, small(policy, tmp_path / "calm", "launcher=local"), tmp_path)

    def kill(process: Any) -> None:
        folder = ready(process, tmp_path / "killed")
        for count, role in enumerate(("engine", "orchestrator", "trainer"), 1):
            os.kill(processes(folder)[role], signal.SIGKILL)
            ready(process, tmp_path / "killed", count + 2)

    killed = trained(sys.executable, small(policy, tmp_path / "killed", "launcher=local"), tmp_path, kill)
    assert rewards(alone) == rewards(calm) == rewards(killed)
    assert len({row[0] for row in rewards(killed)}) == STEPS
    assert killed[1].count("was ended by SIGKILL; restarting") == 3
    assert checked(killed[0] / "ledger.sqlite")["trained"] == sum(row[-1] for row in rewards(killed))
    assert {path.stem for path in (calm[0] / "launch").iterdir()} == {"engine", "orchestrator", "trainer"}


@pytest.mark.nightly(reason="runs of several processes")
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_end_of_the_supervisor_is_that_of_all_and_the_run_resumes(
    policy: Path, tmp_path: Path, how: signal.Signals
) -> None:
    begun: dict[str, int] = {}
    seconds = []

    def end(process: Any) -> None:
        begun.update(processes(ready(process, tmp_path / "run")))
        seconds.append(time.monotonic())
        process.send_signal(how)
        process.wait(SECONDS)
        seconds.append(time.monotonic())

    options = small(policy, tmp_path / "run", "launcher=local", "trainer.max_steps=1000")
    folder, _ = trained(sys.executable, options, tmp_path, end, 0 if how == signal.SIGINT else -how)
    assert set(begun) == {"engine", "orchestrator", "trainer"}
    last = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in begun.values()):
        assert time.monotonic() < last, "something has survived"
        time.sleep(0.05)
    assert seconds[1] - seconds[0] < 60  # a step, a checkpoint and a report, on a busy machine
    done = len((folder / "metrics.csv").read_text().splitlines()) - 1
    further = [f"resume={folder}", f"trainer.max_steps={done + 2}"]
    trained(sys.executable, [*small(policy, tmp_path / "run", "launcher=local"), *further], tmp_path)
    assert len((folder / "metrics.csv").read_text().splitlines()) - 1 == done + 2


@pytest.mark.nightly(reason="runs of several processes")
@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.parametrize(
    ("options", "roles"),
    [
        (("environment=math", "collection=sync"), {"engine", "trainer"}),
        (("environment=tool_math", "collection=sync", "harness=loop"), {"engine", "trainer"}),
        (("environment=tool_math", "collection=async", "harness=loop"), {"engine", "orchestrator", "trainer"}),
        (
            ("environment=math", "collection=async", "rollout.drop_equal=false", *SANDBOXED),
            {"engine", "orchestrator", "trainer"},
        ),
        (
            ("environment=math", "collection=async", "rollout.drop_equal=false", "harness=mini_swe"),
            {"engine", "orchestrator", "trainer"},
        ),
    ],
    ids=["sync", "harness-sync", "harness-async", "program-in-a-sandbox", "shell-in-a-sandbox"],
)
def test_the_synchronous_loop_and_harnesses_have_their_server(
    tmp_path: Path, options: tuple[str, ...], roles: set[str]
) -> None:
    shared = [
        "init=demo", "hardware=torch_cpu", f"output_dir={tmp_path / 'launched'}", "rollout.groups=4",
        "rollout.group_size=4", "rollout.max_new_tokens=64", "evaluation.tasks=0", "trainer.max_steps=3",
        "trainer.precision=fp32", "trainer.deterministic=true", "trainer.threads=1", *options,
    ]  # fmt: skip
    launched = trained(sys.executable, [*shared, "launcher=local"], tmp_path)
    assert {path.stem for path in (launched[0] / "launch").iterdir()} == roles
    with (launched[0] / "metrics.csv").open() as file:
        steps = list(csv.DictReader(file))
    assert len(steps) == 3 and sum(float(step["tokens"]) for step in steps) > 0
    assert max(float(step["logprob_gap"]) for step in steps if step["logprob_gap"]) < 1e-3
    if not any(option.startswith("harness=") for option in options):
        alone = [option.replace("launched", "alone") for option in shared]
        assert rewards(launched) == rewards(trained(sys.executable, [*alone, "engine=paged"], tmp_path))
