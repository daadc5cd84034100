"""An asynchronous run whose processes are killed (SIGKILL) at random, and its ledger afterwards.

    python benchmarks/chaos.py [--minutes 20] [--seed 0] [--kills 5] [--json FILE]

A tiny policy trains on an environment of its orchestrator's process and on a task service in another; two engines of a
server sample. Trainer, orchestrator, engines and service are killed `--kills` times each at moments that the seed
decides, spread over the minutes. The benchmark resumes the trainer; the trainer replaces the orchestrator, that one the
service, and the server its engines. Then the run ends undisturbed. A rollout that is trained on twice, is in no batch,
or was dropped without a reason ends the benchmark with an error. ``reward`` is the mean over the last ten steps;
``reward_undisturbed`` that of the same number of steps without kills, on the same server; ``restarts`` is what the
server counts.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import _path  # noqa: F401
from _machine import describe_machine
from support import even_service
from support.policies import save_policy
from support.run_chaos import checked, drive, finished, killed_fork, killed_service

TESTS = Path(__file__).resolve().parents[1] / "tests"
LEARN = TESTS / "rl" / "trainer" / "learn.py"
BEGIN_SECONDS = 0.06
"""Mean time in which the service begins a rollout, one after another; half of a step's 16 rollouts are its own."""
STEP_SECONDS = 8 * BEGIN_SECONDS
"""Of a step at least; decides how many steps there are."""
LAST = 10
KEY = "admin-of-the-chaos"


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds = 60 * options.minutes
    steps = max(LAST, int(seconds / STEP_SECONDS))
    with tempfile.TemporaryDirectory(prefix="arcforge-chaos-") as place:
        folder, calm = Path(place) / "run", Path(place) / "calm"
        policy = save_policy(Path(place) / "policy")
        with served(policy) as (server, address):
            begun, trainer, rng = time.monotonic(), [0], random.Random(options.seed)

            def begin() -> int:
                trainer[0] = start(policy, folder, steps, address)
                return trainer[0]

            kills = drive(
                begin,
                lambda: resumable(folder),
                lambda: progress(folder),
                {
                    "service": lambda: killed_service(folder.with_suffix(".pid")),
                    "orchestrator": lambda: killed_fork(trainer[0], rng),
                    "engine": lambda: killed_fork(server, rng),
                },
                options.seed,
                seconds / (5 * options.kills),
                options.kills,
            )
            report: dict[str, Any] = {
                "kills": dict(kills),
                "restarts": restarts(address),
                "seconds": time.monotonic() - begun,
                "rollouts": checked(folder / "ledger.sqlite"),
                "reward": last_reward(folder),
            }
            code = finished(start(policy, calm, steps, address), lambda: progress(calm))
            assert code == 0, f"the undisturbed run ended with {code}"
        report |= {"reward_undisturbed": last_reward(calm), "machine": describe_machine(1)}
    text = json.dumps(report, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text)


@contextmanager
def served(policy: Path) -> Iterator[tuple[int, str]]:
    """Yields process id and address of a server of the policy with two engines."""
    command = [sys.executable, "-m", "arcforge_serving", "serve", f"checkpoint={policy}", "port=0", "dp=2"]
    command += ["hardware=torch_cpu", "engine.cache_tokens=8192", "router.health_seconds=0.2"]
    environment = {**os.environ, "ARCFORGE_SERVE_ADMIN_KEYS": KEY, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://[\d.:]+", process.stdout.readline())
            assert found, "the server has not started"
            yield process.pid, found[0]
        finally:
            process.terminate()


def restarts(address: str) -> int:
    """Returns how often the server has started an engine again."""
    status = httpx.get(f"{address}/v1/rl/status", headers={"authorization": f"Bearer {KEY}"}, timeout=60.0).json()
    return sum(engine["restarts"] for engine in status["engines"])


def start(policy: Path, folder: Path, steps: int, address: str) -> int:
    """Begins or resumes the run; returns its process id."""
    service = [sys.executable, even_service.__file__, str(folder.with_suffix(".pid")), str(BEGIN_SECONDS)]
    overrides = [
        f"init={policy}", "environment=copy", "collection=async", "collection.orchestrator=process",
        "engine=arcforge", f"engine.url={address}", "engine.stream=false", "collection.heartbeat_seconds=0.2",
        "optimizer=torch_adamw", "optimizer.lr=0.003", "hardware=torch_cpu", f"folder={folder}", "evaluation.tasks=0",
        "rollout.groups=4", "rollout.group_size=4", "rollout.max_new_tokens=3", "rollout.drop_equal=false",
        f"trainer.max_steps={steps}", "trainer.threads=1", "trainer.checkpoint_every=5",
        "+collection.services.here.environment=copy", f"+collection.services.even.command={json.dumps(service)}",
    ]  # fmt: skip
    if resumable(folder):
        overrides.append(f"resume={folder}")
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "ARCFORGE_ENGINE_KEY": KEY}
    return subprocess.Popen([sys.executable, str(LEARN), *overrides], env=environment, stdout=subprocess.DEVNULL).pid


def resumable(folder: Path) -> bool:
    """Whether the run has a whole checkpoint."""
    return any((folder / "checkpoints").glob("step-*"))


def progress(folder: Path) -> float:
    """Returns when the run last finished a step; 0 before the first."""
    metrics = folder / "metrics.csv"
    return metrics.stat().st_mtime if metrics.exists() else 0.0


def last_reward(folder: Path) -> float:
    """Returns the mean reward of the last steps."""
    rows = list(csv.DictReader((folder / "metrics.csv").open()))[-LAST:]
    return sum(float(row["reward"]) for row in rows) / len(rows)


if __name__ == "__main__":
    main()
