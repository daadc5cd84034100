"""Training through agents: programs before the gateway of the server that gets the weights."""

import csv
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.rl.trainer.conftest import Compose
from tests.rl.trainer.test_engine_server import KEY, served, what_came

from arcforge_core import load_pretrained
from arcforge_core.contracts.environment import Episode, Score, Task
from arcforge_core.contracts.sessions import SessionRecord
from arcforge_core.episodes.copy import ExactEnvironment
from arcforge_core.errors import ConfigError
from arcforge_rl.agents.gateway import Gateway, GatewaySession
from arcforge_rl.orchestrator.ledger import Ledger
from arcforge_rl.trainer.run import run

PROGRAM = Path(__file__).parents[2] / "support" / "agent_program.py"
COMMAND = f"{sys.executable} {PROGRAM} plain {{model}} {{prompt_file}}"
AGENTS = {
    "loop": ("harness=loop",),
    "command": ("harness=command", "harness.place=host", f'harness.command="{COMMAND}"'),
}


def reward_any(environment: Any, task: Task, episode: Episode) -> Score:
    """Another reward for another text, so that every group teaches."""
    return Score(zlib.crc32(episode.reply.text.encode()) / 2**32)


@pytest.mark.slow(reason="a server process, programs with OpenAI's client, two steps")
@pytest.mark.parametrize("agent", AGENTS)
def test_steps_are_taken_on_what_agents_sampled(
    small_run: Compose, policy: Path, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", KEY)
    records, close = [], Gateway.close

    async def kept(self: Gateway, session: GatewaySession) -> SessionRecord:
        records.append(await close(self, session))
        return records[-1]

    monkeypatch.setattr(Gateway, "close", kept)
    monkeypatch.setattr(ExactEnvironment, "exact", reward_any)
    with served(policy, "gateway.sessions=40") as address:
        server = ("engine=arcforge", f"engine.url={address}", "engine.stream=false")
        size = ("trainer.max_steps=2", "evaluation.tasks=0", "rollout.groups=2", "rollout.drop_equal=false")
        found = run(small_run(*AGENTS[agent], *server, *size, "optimizer.lr=0.02", "rollout.group_size=2"))
    turns = {"loop": 1, "command": 2}[agent]
    assert [len(record.turns) for record in records] == [turns] * 8
    branches = [[branch for record in records[n : n + 4] for branch in record.branches] for n in (0, 4)]
    for version, of in enumerate(branches):
        assert {v for b in of for v in b.versions[b.sampled].tolist()} == {version}, "the weights of the step before"
    with (found.dir / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    trained = [sum(branch.num_sampled for branch in of) for of in branches]
    assert [float(row["sampled_tokens"]) for row in rows] == trained and min(trained) > 0
    assert all(0 <= float(row["logprob_gap"]) < 1e-4 for row in rows), "trainer and engine read the same tokens"
    assert sum(line["learnt"] for line in what_came(found.dir)) == 8
    last = sorted((found.dir / "checkpoints").glob("step-*"))[-1]
    before, after = load_pretrained(policy).state_dict(), load_pretrained(last).state_dict()
    assert any(not before[name].equal(value) for name, value in after.items())


@pytest.mark.slow(reason="a server process, three asynchronous steps")
def test_an_asynchronous_run_trains_on_what_agents_sampled(
    small_run: Compose, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", KEY)
    monkeypatch.setattr(ExactEnvironment, "exact", reward_any)
    with served(policy, "gateway.sessions=40") as address:
        server = ("engine=arcforge", f"engine.url={address}", "harness=loop", "harness.concurrency=12")
        size = ("trainer.max_steps=3", "evaluation.tasks=0", "rollout.groups=2", "rollout.group_size=2")
        found = run(small_run(*server, *size, "collection=async", "rollout.drop_equal=false", "optimizer.lr=0.02"))
    with (found.dir / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    idle = [float(row["engine_idle"]) for row in rows]  # as the server says: agents ask it, not the run
    assert all(0 <= one <= 1 for one in idle) and min(idle) < 1
    assert len(rows) == 3 and all(0 <= float(row["logprob_gap"] or 0) < 1e-4 for row in rows)
    stalest = max(float(row["staleness_take_max"]) for row in rows)
    assert stalest >= 1, "rollouts were admitted before the weights that train on them"
    ledger = Ledger(found.dir / "ledger.sqlite")
    batched = [one for group in ledger.all_groups() for one in group.rollouts if one.copies]
    ledger.close()
    assert len(batched) == 12 and {one.state for one in batched} == {"trained"}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("harness=loop",), "harness"),
        (("harness=command", "engine=arcforge", "harness.place=host"), "harness.command"),
    ],
)
def test_what_does_not_go_together_is_refused(small_run: Compose, options: tuple[str, ...], field: str) -> None:
    with pytest.raises(ConfigError) as found:
        small_run(*options)
    assert found.value.field == field
