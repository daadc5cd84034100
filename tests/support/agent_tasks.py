"""Tasks for agents before a gateway, and a check of the tokens that they sample."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Environment, Episode, EpisodeFailure, Score, Task
from arcforge_core.episodes.base import GeneratedEnvironment
from arcforge_core.episodes.rewards import reward
from arcforge_core.episodes.tools import converse
from arcforge_rl.agents.chat import ChatSetup
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.rollouts.collect import StepTasks, TracedRollout
from support.clocks import MovedClock

PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
CALL = "one<tool_call>f<arg_key>a</arg_key><arg_value>one</arg_value></tool_call><|observation|>"


class Conversations(GeneratedEnvironment):
    """Has a tool ``f``; the length of the answer decides.

    Args:
        seconds: of a call.
        endless: calls never end, and move the event loop's clock by an hour, so that a limit of time ends the episode
            however busy the machine is.
        broken: calls that fail with the sandbox.
        max_calls: of an episode.
        result: of a call.
    """

    domain = "tools"

    def __init__(
        self, seconds: float = 0.0, broken: int = 0, max_calls: int = 3, result: str = "two", endless: bool = False
    ) -> None:
        super().__init__(type("Config", (), {"seed": 0, "split": "train"}))
        self.seconds, self.broken, self.max_calls, self.result = seconds, broken, max_calls, result
        self.endless = endless

    def draw(self, draw: Any) -> tuple[str, Task]:
        number = str(draw.randrange(10**6))
        return number, Task(number, f"say {number}", number)

    async def run(self, task: Task, agents: Agents) -> Episode:
        async def use(call: ToolCall) -> str:
            if self.broken:
                self.broken -= 1
                raise EpisodeFailure("sandbox", "the tool's sandbox broke")
            if self.endless:
                MovedClock().move(3600)
                await asyncio.Event().wait()
            await asyncio.sleep(self.seconds)
            return self.result

        tool = Tool({"type": "function", "function": {"name": "f", "parameters": PARAMETERS}})
        return await converse(
            agents, [Message("user", task.prompt)], [tool], use, max_calls=self.max_calls, longest_result=10**6
        )

    @reward(timeout=None)
    def even(self, task: Task, episode: Episode) -> Score:
        return Score(float(len(episode.reply.text) % 2 == 0), episode.finish_reason)


def check_tokens(rollouts: Any, serve: Any, whole: bool = True) -> None:
    """Trained ids are the engine's, each once, each after exactly the ids that the engine had read.

    Args:
        rollouts: trained.
        serve: the fixture.
        whole: whether nothing else was sampled.
    """
    records = {record.session_id: record for record in serve.records}
    branches = [branch for rollout in rollouts for branch in rollout.trace.branches]
    recorded = [branch for record in records.values() for branch in record.branches]
    ids = sorted(branch.ids.tolist() for branch in branches)
    assert not whole or ids == sorted(branch.ids.tolist() for branch in recorded)
    runs = []
    for branch in branches:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], branch.sampled.astype(int), [0]])))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            runs.append((branch.ids[:start].tolist(), branch.ids[start:end].tolist()))
            assert np.isfinite(branch.logprobs[start:end]).all() and (branch.versions[start:end] == 0).all()
    sampled = [(prompt, list(stream.result().token_ids)) for prompt, stream in serve.asked]
    assert not Counter(map(str, runs)) - Counter(map(str, sampled)) and (not whole or len(runs) == len(sampled))


def played(
    rollouts: AgentRollouts, environment: Environment, tasks: Sequence[int], size: int, setup: ChatSetup | None = None
) -> list[list[TracedRollout]]:
    return rollouts.play(StepTasks(environment, "s", tasks, size), setup or ChatSetup())
