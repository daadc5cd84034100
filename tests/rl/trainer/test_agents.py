"""Training through agents: programs before the gateway of the server that gets the weights."""

import csv
import sys
from pathlib import Path

import pytest
from tests.rl.trainer.conftest import Compose
from tests.rl.trainer.test_engine_server import KEY, served, what_came

from arcforge_core import load_pretrained
from arcforge_core.errors import ConfigError
from arcforge_rl.trainer.run import run

PROGRAM = Path(__file__).parents[2] / "support" / "agent_program.py"
COMMAND = f"{sys.executable} {PROGRAM} plain {{model}} {{prompt_file}}"
AGENTS = {"loop": ("agent=loop",), "command": ("agent=command", "agent.place=host", f'agent.command="{COMMAND}"')}


@pytest.mark.slow(reason="a server process, programs with OpenAI's client, two steps")
@pytest.mark.parametrize("agent", AGENTS)
def test_steps_are_taken_on_what_agents_sampled(
    small_run: Compose, policy: Path, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", KEY)
    with served(policy, "gateway.sessions=40") as address:
        server = ("engine=arcforge", f"engine.url={address}", "engine.stream=false")
        size = ("trainer.max_steps=2", "evaluation.tasks=0", "rollout.groups=2", "rollout.drop_equal=false")
        found = run(small_run(*AGENTS[agent], *server, *size, "optimizer.lr=0.02", "rollout.group_size=2"))
    came = what_came(found.dir)
    assert len(came) == 2 * 2 * 2 and all(line["failure"] is None for line in came)
    turns = {"loop": 1, "command": 2}[agent]
    for line in came:
        versions = {v for b in line["branches"] for v, s in zip(b["versions"], b["sampled"], strict=True) if s}
        assert versions == {line["step"] - 1}, "the weights of the step before"
        text = [any(b["sampled"]) for b in line["branches"]]
        assert text and all(text) and len(line["messages"]) == 2
    with (found.dir / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(0 <= float(row["logprob_gap"]) < 1e-4 for row in rows), "the trainer reads what the engine sampled"
    assert all(float(row["length"]) > 0.5 * turns for row in rows)
    last = sorted((found.dir / "checkpoints").glob("step-*"))[-1]
    before, after = load_pretrained(policy).state_dict(), load_pretrained(last).state_dict()
    assert any(not before[name].equal(value) for name, value in after.items())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("agent=loop",), "agent"),
        (("agent=loop", "engine=arcforge", "collection=async"), "agent"),
        (("agent=loop", "engine=arcforge", "rollout.temperature=0.5"), "rollout.temperature"),
        (("agent=command", "engine=arcforge", "agent.place=host"), "agent.command"),
    ],
)
def test_what_does_not_go_together_is_refused(small_run: Compose, options: tuple[str, ...], field: str) -> None:
    with pytest.raises(ConfigError) as found:
        small_run(*options)
    assert found.value.field == field
