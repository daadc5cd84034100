"""A judge's server is killed in the middle of a step, and comes back or does not."""

from __future__ import annotations

import csv
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.rl.rewards.judge.test_run import reward_file
from tests.rl.trainer.conftest import small_overrides

from support.logged_judge import logged_judge, verdicts
from support.policies import save_policy
from support.waiting import wait_until

ROLLOUTS = 16
"""Of a step."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def judged_run(folder: Path, port: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Starts ``arcforge-rl`` with the judge at a port as its only reward."""
    reward = reward_file(folder)
    command = [
        *(sys.executable, "-m", "arcforge_core", "rl"),
        *small_overrides(save_policy(folder / "policy"), folder / "runs"),
        *(f"rewards={reward}", f"+agents.judge.url=http://127.0.0.1:{port}"),
        *("evaluation.tasks=0", "rollout.drop_equal=false", "rollout.max_new_tokens=6", *options),
    ]
    said = (folder / "said.txt").open("w")
    with said, subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    found = next(iter((folder / "runs").glob(f"*/*/{name}")), None)
    if found is None:
        return []
    lines = found.read_text().splitlines()
    return list(csv.DictReader(lines)) if name.endswith("csv") else [json.loads(line) for line in lines]


def failed_steps(folder: Path) -> list[int]:
    """Returns the steps all of whose rollouts failed."""
    rows = rows_of(folder, "metrics.csv")
    return [int(row["step"]) for row in rows if float(row.get("failed_verifier") or 0) == ROLLOUTS]


def check_records(folder: Path, log: Path) -> None:
    """Checks that what was learnt from has the logged verdict, and that all else is a counted failure."""
    given, rollouts = verdicts(log), rows_of(folder, "rollouts.jsonl")
    for row in rollouts:
        prompt, reply = (message["content"] for message in row["messages"])
        if row["learnt"]:
            assert row["failure"] is None and row["rewards"]["liked"] == given[prompt, reply]
        else:
            assert row["failure"]["kind"] == "verifier" and not row["rewards"]
    for metrics in rows_of(folder, "metrics.csv"):
        of_step = [row for row in rollouts if row["step"] == int(metrics["step"])]
        failed = sum(not row["learnt"] for row in of_step)
        assert len(of_step) == ROLLOUTS
        assert float(metrics["failed_verifier"] or 0) == float(metrics["reward_liked_failures"]) == failed
        assert bool(metrics["reward_liked"]) == bool(metrics["policy_loss"]) == (failed < ROLLOUTS)


@pytest.mark.timeout(900)
@pytest.mark.nightly(reason="a run whose judge is killed and restarted")
def test_a_run_continues_when_its_judge_was_killed_and_restarted(tmp_path: Path) -> None:
    log, port = tmp_path / "log.jsonl", free_port()
    with logged_judge(port, log, most=ROLLOUTS + 5) as judge, judged_run(tmp_path, port, "trainer.max_steps=12") as run:
        wait_until(lambda: failed_steps(tmp_path) or run.poll() is not None, 300)
        assert judge.poll() == -signal.SIGKILL and run.poll() is None, (tmp_path / "said.txt").read_text()
        with logged_judge(port, log):
            assert run.wait(300) == 0, (tmp_path / "said.txt").read_text()
    check_records(tmp_path, log)
    failed = failed_steps(tmp_path)
    assert min(failed) > 2 and max(failed) < 12, "it had a judge before and after"


@pytest.mark.timeout(900)
@pytest.mark.nightly(reason="a run whose judge is killed")
def test_a_run_whose_judge_never_returns_ends_with_one_line(tmp_path: Path) -> None:
    log, port = tmp_path / "log.jsonl", free_port()
    options = ("trainer.max_steps=12", "monitor.idle_steps=2")
    with logged_judge(port, log, most=ROLLOUTS + 5), judged_run(tmp_path, port, *options) as run:
        assert run.wait(300) == 2, (tmp_path / "said.txt").read_text()
    check_records(tmp_path, log)
    assert len(failed_steps(tmp_path)) == 1, "the second one ends the run"
    (line,) = [line for line in (tmp_path / "said.txt").read_text().splitlines() if line.startswith("error: ")]
    assert "no token was trained in 2 steps (monitor.idle_steps); all 16 rollouts failed; the first: verifier" in line
    assert f"agents.judge: http://127.0.0.1:{port}" in line and "ConnectError" in line
