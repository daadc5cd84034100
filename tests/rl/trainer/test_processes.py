"""Two processes, started by torchrun, learn what one learns; one that is killed continues as if it had not been."""

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import small_overrides
from tests.rl.trainer.test_engine_server import KEY, served

from support.rl_runs import weights

SCRIPT = str(Path(__file__).with_name("learn.py"))
TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
TIMED = ("seconds", "trainer_idle", "engine_idle")
"""How names of figures begin that are of the clock."""
SPREAD = ("rollout.group_size=8", "rollout.groups=5", "evaluation.tasks=5")


def command(folder: Path, policy: Path, launcher: list[str], *options: str) -> list[str]:
    return [sys.executable, *launcher, SCRIPT, *small_overrides(policy, folder), *SPREAD, *options]


def learn(folder: Path, policy: Path, launcher: list[str], *options: str) -> Path:
    """Runs to the end and returns the run's folder."""
    done = subprocess.run(command(folder, policy, launcher, *options), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(folder.glob("*/*-rl"))) == 1, "only the first process writes"
    return (folder / "latest").resolve()


def table(run: Path, name: str) -> list[dict[str, str]]:
    with (run / name).open() as file:
        return list(csv.DictReader(file))


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]


def shown(line: dict[str, Any]) -> list[dict[str, Any]]:
    """The tokens of a rollout that the report shows."""
    return [token for branch in line.get("tokens", []) for token in branch]


@pytest.mark.nightly(reason="two processes; the trainer of core does the same by default")
@pytest.mark.parametrize(
    "options",
    [
        ("rollout.group_size=5", "trainer.micro_batch_tokens=16"),  # of unlike numbers of micro-batches
        pytest.param(
            ("algorithm=ppo", "trainer.updates=2", "trainer.max_steps=2"),
            marks=pytest.mark.nightly(reason="as the other case, with a critic"),
        ),
        ("anchor.weight=0.5", "anchor.batch=3", "trainer.max_steps=2"),
    ],
    ids=["icepop", "ppo and two updates", "anchors"],
)
def test_two_processes_learn_what_one_learns(tmp_path: Path, policy: Path, options: tuple[str, ...]) -> None:
    if "anchor.weight=0.5" in options:
        (tmp_path / "anchors.jsonl").write_text('{"prompt": "a", "reply": "one two"}\n{"prompt": "b", "reply": "3"}\n')
        options = (*options, f"anchor.files=[{tmp_path / 'anchors.jsonl'}]")
    two = learn(tmp_path / "two", policy, TWO, *options)
    one = learn(tmp_path / "one", policy, [], *options)
    for name, weight in weights(one).items():
        torch.testing.assert_close(weights(two)[name], weight, atol=2e-5, rtol=1e-3)
    assert table(two, "evaluations.csv")[0] | {"seconds": ""} == table(one, "evaluations.csv")[0] | {"seconds": ""}
    ours, theirs = table(two, "metrics.csv"), table(one, "metrics.csv")
    assert len(ours) == len(theirs)
    for mine, wanted in zip(ours, theirs, strict=True):
        for name, cell in wanted.items():
            if cell and not name.startswith((*TIMED, "progress")) and "gap" not in name:
                assert float(mine[name]) == pytest.approx(float(cell), rel=1e-3, abs=1e-4), name
    for mine, wanted in zip(lines(two), lines(one), strict=True):
        for name in ("rollout", "task", "rewards", "learnt"):
            assert mine[name] == wanted[name]
        factors = [
            [token.get("factor") for branch in of.get("tokens", []) for token in branch] for of in (mine, wanted)
        ]
        assert [f is None for f in factors[0]] == [f is None for f in factors[1]]


@pytest.mark.nightly(reason="three runs of two processes each")
def test_two_processes_go_on(tmp_path: Path, policy: Path) -> None:
    whole = learn(tmp_path / "whole", policy, TWO, "trainer.max_steps=4")
    learn(tmp_path / "parts", policy, TWO, "trainer.max_steps=2")
    parts = learn(tmp_path / "parts", policy, TWO, "trainer.max_steps=4", "resume=latest")
    resumed, wanted = weights(parts), weights(whole)
    assert all(torch.equal(resumed[name], wanted[name]) for name in wanted)
    assert [row["reward"] for row in table(parts, "metrics.csv")] == [
        row["reward"] for row in table(whole, "metrics.csv")
    ]


@pytest.mark.nightly(reason="three commands in processes of their own, one of them killed")
def test_a_killed_run_ends_in_the_same_rewards(tmp_path: Path, policy: Path) -> None:
    """SIGKILL between two checkpoints, by the commands that people type."""
    options = ("trainer.max_steps=16", "trainer.checkpoint_every=3", "trainer.eval_every=4")
    whole = learn(tmp_path / "whole", policy, [], *options)
    killed = tmp_path / "cut" / "latest" / "metrics.csv"
    with subprocess.Popen(command(tmp_path / "cut", policy, [], *options), stdout=subprocess.DEVNULL) as process:
        while not killed.exists() or killed.read_bytes().count(b"\n") < 6:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert 5 <= len(table(killed.parent, "metrics.csv")) < 16 and not (killed.parent / "summary.json").exists()
    rest = learn(tmp_path / "cut", policy, [], *options, "resume=latest")
    untimed = [[{n: cell for n, cell in row.items() if not n.startswith(TIMED)} for row in table(of, "metrics.csv")]
               for of in (rest, whole)]  # fmt: skip
    assert untimed[0] == untimed[1] and len({row["reward"] for row in untimed[0]}) > 5
    assert lines(rest) == lines(whole)
    assert table(rest, "heldout.csv") == table(whole, "heldout.csv")
    ours, theirs = weights(rest), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.nightly(reason="three processes of servers, two trainers and one")
def test_sessions_of_two_trainers_before_two_engines(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One gateway before a router; the first trainer gives the weights, and each session stays on one engine."""
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", KEY)
    log = tmp_path / "router.jsonl"
    options = ("harness=loop", "harness.concurrency=8", "engine=arcforge", "engine.stream=false", "evaluation.tasks=0")
    options += ("trainer.deterministic=true", "rollout.drop_equal=false", "trainer.max_steps=3", "optimizer.lr=0.02")
    with served(policy, "dp=2", "deterministic=true", f"router.log={log}", "router.free_requests=1") as fleet:
        gateway = ("engine=arcforge", f"engine.url={fleet}", "gateway.sessions=100")
        with served(policy, *gateway) as address:
            two = learn(tmp_path / "two", policy, TWO, *options, f"engine.url={address}")
            one = learn(tmp_path / "one", policy, [], *options, f"engine.url={address}")
    names = ("step", "rollout", "task", "rewards", "learnt")
    found, wanted = ([[line.get(name) for name in names] for line in lines(run)] for run in (two, one))
    assert found == wanted and len(found) == 3 * 5 * 8
    for name, weight in weights(one).items():
        torch.testing.assert_close(weights(two)[name], weight, atol=2e-5, rtol=1e-3)
    for row in table(two, "metrics.csv"):
        assert float(row["logprob_gap"]) < 1e-4 and 0 <= float(row["engine_idle"]) <= 1
    engines: dict[str, set[str]] = {}
    for line in log.read_text().splitlines():
        decision = json.loads(line)
        engines.setdefault(decision["session"], set()).add(decision["engine"])
    sessions = {name: at for name, at in engines.items() if name}
    assert len(sessions) == 2 * 3 * 5 * 8, "the gateway names each rollout's session"
    assert all(len(at) == 1 for at in sessions.values()) and len(set.union(*sessions.values())) == 2
