"""Reinforcement learning with ``engine=arcforge``: the engine is a server, a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.trainer.conftest import Compose

from arcforge_core import load_pretrained
from arcforge_core.contracts.engine import PartialUpdateError
from arcforge_core.testing.small_models import small_model
from arcforge_rl.trainer.run import run
from arcforge_rl.trainer.weight_sync import hand_over
from support.marks import nightly_case

KEY = "admin-key-of-the-run"


@contextmanager
def served(policy: Path, *options: str) -> Iterator[str]:
    """Yields the address of ``arcforge-serve`` with a policy."""
    command = [
        sys.executable,
        "-m",
        "arcforge_serving",
        "serve",
        f"checkpoint={policy}",
        "port=0",
        "hardware=torch_cpu",
    ]
    environment = {**os.environ, "ARCFORGE_SERVE_ADMIN_KEYS": KEY, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"http://[\d.:]+", process.stdout.readline())
            assert found, "the server has not started"
            yield found[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def what_came(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


@pytest.mark.slow(reason="a server process and two runs")
@pytest.mark.parametrize("options", [(), nightly_case(("dp=2",))], ids=["one engine", "two with the router"])
def test_a_run_on_a_server_ends_in_the_rewards_of_one_in_this_process(
    small_run: Compose, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", KEY)
    common = ("trainer.deterministic=true", "trainer.max_steps=3", "rollout.max_new_tokens=6", "optimizer.lr=0.02")
    inside = run(small_run(*common, "engine=paged", f"output_dir={tmp_path / 'inside'}"))
    with served(policy, "deterministic=true", *options) as address:
        server = (f"engine.url={address}", "engine.stream=false", f"output_dir={tmp_path / 'server'}")
        outside = run(small_run(*common, "engine=arcforge", *server))
        mine, theirs = what_came(inside.dir), what_came(outside.dir)
        names = ("step", "rollout", "task", "rewards", "learnt")
        assert [[line.get(n) for n in names] for line in theirs] == [[line.get(n) for n in names] for line in mine]
        assert len({line["step"] for line in mine}) == 3
        last = sorted((inside.dir / "checkpoints").glob("step-*"))[-1].name
        states = [load_pretrained(found.dir / "checkpoints" / last).state_dict() for found in (inside, outside)]
        for name, value in states[0].items():  # log-probs of another batch may differ in the last bit
            torch.testing.assert_close(states[1][name], value, atol=1e-5, rtol=1e-4)
        again = run(small_run(*common, "engine=arcforge", *server[:2], f"output_dir={tmp_path / 'again'}"))
        rewards = [line["rewards"] for line in what_came(again.dir)]
        assert rewards == [line["rewards"] for line in mine], "another run begins with its own weights"


def test_one_engine_that_refuses_weights_does_not_end_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    class Fleet:
        weight_version = 0

        def update_weights(self, state: Any, **given: Any) -> None:
            raise PartialUpdateError(4, {"1": "507 no room"})

    engine: Any = Fleet()
    hand_over(small_model(), engine, 4)
    assert "engine 1: 507 no room" in capsys.readouterr().err
