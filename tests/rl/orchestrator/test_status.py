"""The status page of a run's rollouts, and how they are paused, drained and resumed."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import pytest
from tests.rl.orchestrator.test_source import ASYNC
from tests.rl.trainer.conftest import Compose, learnable, no_drawing, policy, small_run

from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.serving_engine import EngineStats
from arcforge_core.episodes.agent import SamplingSetup, TextDialogue
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.errors import ConfigError
from arcforge_rl.orchestrator.collector import Collector
from arcforge_rl.orchestrator.ledger import Ledger
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.services.desk import single
from arcforge_rl.orchestrator.status_app import app_of
from arcforge_rl.rollouts.player import PolicyPlayer
from arcforge_rl.trainer.run import run
from support.ledger_run import TOKENIZER, SeedSays
from support.policies import reward_even

__all__ = ["learnable", "no_drawing", "policy", "small_run"]


class Quiet:
    """An engine that only has figures."""

    def stats(self) -> EngineStats:
        return EngineStats(3, 1, 100, 25, 25, preemptions=2, weight_version=7)


def test_the_page_shows_progress_queue_staleness_and_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopyEnvironment, "exact", reward_even)

    async def work() -> None:
        ledger = Ledger(tmp_path / "ledger.sqlite")
        setup, rules = SamplingSetup(TextDialogue(TOKENIZER), 5, 1.0, 500), Rules(2, 3, concurrency=4, retries=1)
        collector = Collector(
            rules, single(CopyEnvironment(CopyConfig())), PolicyPlayer(SeedSays(), setup), 0, ("reward",), ledger
        )
        transport = httpx.ASGITransport(app_of("a <run>", collector, Quiet()))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:

            async def post(path: str) -> dict[str, object]:
                answer = await http.post(path, headers={"content-type": "application/json"})
                return dict(answer.raise_for_status().json())

            await collector.begin(0)
            for step in range(3):
                await collector.take(step)
                collector.finished_step(step + 1)
            assert (await post("/drain"))["paused"] is True
            status = (await http.get("/status")).json()
            assert status["queue"]["running"] == 0 and collector.scheduler.idle
            assert status["progress"]["trained"] == 3 and status["progress"]["rollouts"] == ledger.progress()
            assert status["failures"]["engine"] == collector.scheduler.counts["failed_engine"] > 0
            finished = status["progress"]["rollouts"]["scored"]
            ages = sum(status["staleness"].values())
            assert 0 < ages <= finished
            (service,) = status["services"].values()
            assert service["ratio"] == 1.0 and service["failed"] == status["failures"]["engine"]
            assert status["engine"]["cache_use"] == 0.5 and status["engine"]["weights"] == 7
            page = await http.get("/")
            text = page.text
            assert page.headers["refresh"] and "a &lt;run&gt;" in text and "<run>" not in text and "paused" in text
            for heading in ("Progress", "Queue", "Staleness", "Failures", "Groups left out", "Task services", "Engine"):
                assert f"{heading}</h2>" in text, heading
            await asyncio.sleep(0.05)
            assert collector.scheduler.running == 0, "paused"
            assert (await post("/resume"))["paused"] is False
            await collector.take(3)
            assert (await http.post("/pause")).status_code == 415, "a form of another site may not"
            assert (await http.get("/status", headers={"host": "evil.example"})).status_code == 400
        await collector.stop()
        ledger.close()

    asyncio.run(work())


def test_a_run_serves_its_page_and_frees_the_port(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"collection.status_port={port}: cannot be listened on"):
            run(small_run(*ASYNC, f"collection.status_port={port}"))
    found: list[str] = []
    score = CopyEnvironment.score

    async def looks(environment: CopyEnvironment, *arguments: object) -> object:
        async with httpx.AsyncClient() as http:
            found.append((await http.get(f"http://127.0.0.1:{port}/")).text)
        return await score(environment, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(CopyEnvironment, "score", looks)
    run(small_run(*ASYNC, f"collection.status_port={port}", "trainer.max_steps=1", "rollout.drop_equal=false"))
    assert (
        "rollouts running" in found[-1]
        and f"status of the rollouts: http://127.0.0.1:{port}" in capsys.readouterr().err
    )
    with socket.create_server(("127.0.0.1", port)):
        pass
