"""Agents in an asynchronous collection: the ledger, staleness, and a kill."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from arcforge_rl.agents.chat import ChatSetup
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.configs.agents import LoopHarnessConfig
from arcforge_rl.orchestrator.collector import Collector
from arcforge_rl.orchestrator.ledger import Ledger
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.services.desk import single
from support.agent_tasks import CALL, Conversations, check_tokens
from support.servers import scripted_state
from support.sessions import TOKENIZER

RULES = Rules(threshold=2, group_size=2, eta=1.0, concurrency=3)


def test_a_kill_loses_no_rollout_of_an_agent_that_was_finished(served: Any, tmp_path: Path) -> None:
    """Batches before and after it have every finished rollout once; only those that ran are sampled again."""
    script = lambda text: "done<|user|>" if "<tool_response>" in text else CALL  # noqa: E731
    rollouts = AgentRollouts(LoopHarnessConfig(concurrency=3), served(scripted_state(TOKENIZER, script)))
    trained: list[Any] = []

    async def run(step: int, finished: int) -> None:
        """Takes the batch of a step, then waits for a number of finished rollouts, and ends as a killed one does."""
        ledger = Ledger(tmp_path / "ledger.sqlite", "run")
        async with rollouts.player(ChatSetup()) as player:
            collector = Collector(RULES, single(Conversations(0.05)), player, 0, (), ledger)
            await collector.begin(step)
            taken = await collector.take(step)
            trained.extend(one for group in taken.kept for one in group)
            collector.finished_step(step + 1)
            while sum(states(ledger).values()) - states(ledger)["running"] - states(ledger)["admitted"] < finished:
                await asyncio.sleep(0.01)
            await collector.stop()
            ledger.close()

    asyncio.run(run(0, 6))
    before = len(served.records)
    asyncio.run(run(1, 8))
    names = sorted(one.trace.rollout_id for one in trained)
    assert names == ["0/0/0/0", "0/0/0/1", "0/0/0/2", "0/0/0/3", "0/1/0/0", "0/1/0/1", "0/1/0/2", "0/1/0/3"]
    check_tokens(trained, served, whole=False)
    ended = Counter(
        record.metadata["rollout"] for record in served.records if record.branches and len(record.turns) == 2
    )
    assert before >= 6 and all(ended[name] == 1 for name in names), ended


def states(ledger: Ledger) -> Counter[str]:
    return Counter(one.state for group in ledger.all_groups() for one in group.rollouts)
