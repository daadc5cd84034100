"""Agents before a gateway with a small model: tokens, groups, failures, limits, and a training step."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, EpisodeFailure, Score, Task
from arcforge_core.contracts.sessions import SessionRecord
from arcforge_core.episodes.base import GeneratedEnvironment
from arcforge_core.episodes.rewards import reward
from arcforge_core.episodes.tools import converse
from arcforge_core.errors import ConfigError
from arcforge_rl.agents.chat import ChatSetup
from arcforge_rl.agents.gateway import Gateway
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.configs.agents import CommandHarnessConfig, LoopHarnessConfig
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.app import gateway_app
from support.servers import listening, scripted_state, small_state
from support.sessions import TOKENIZER

PROGRAM = Path(__file__).parents[2] / "support" / "agent_program.py"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
CALL = "one<tool_call>f<arg_key>a</arg_key><arg_value>one</arg_value></tool_call><|observation|>"


class Conversations(GeneratedEnvironment):
    """Has a tool ``f``; the length of the answer decides."""

    domain = "tools"

    def __init__(self, seconds: float = 0.0, broken: int = 0) -> None:
        super().__init__(type("Config", (), {"seed": 0, "split": "train"}))
        self.seconds, self.broken = seconds, broken

    def draw(self, draw: Any) -> tuple[str, Task]:
        number = str(draw.randrange(10**6))
        return number, Task(number, f"say {number}", number)

    async def run(self, task: Task, agents: Agents) -> Episode:
        async def use(call: ToolCall) -> str:
            if self.broken:
                self.broken -= 1
                raise EpisodeFailure("sandbox", "the tool's sandbox broke")
            await asyncio.sleep(self.seconds)
            return "two"

        tool = Tool({"type": "function", "function": {"name": "f", "parameters": PARAMETERS}})
        return await converse(agents, [Message("user", task.prompt)], [tool], use, max_calls=3)

    @reward(timeout=None)
    def even(self, task: Task, episode: Episode) -> Score:
        return Score(float(len(episode.reply.text) % 2 == 0), episode.finish_reason)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts gateways: state -> address. Keeps the engine's requests, and the records that were returned."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def serve(state: Any, unix: str | None = None, **options: Any) -> str:
            submit, serve.asked = state.engine.submit, []

            def noted(prompt: Any, params: Any, **given: Any) -> Any:
                streams = submit(prompt, params, **given)
                serve.asked.append(([*prompt], streams[0]))
                return streams

            state.engine.submit = noted
            app = gateway_app(state, GatewayConfig(sessions=50, **options))
            _, address = stack.enter_context(listening(state, app=app, unix=unix))
            return address

        serve.records = []
        close = Gateway.close

        async def kept(self: Gateway, session: Any) -> SessionRecord:
            serve.records.append(await close(self, session))
            return serve.records[-1]

        monkeypatch.setattr(Gateway, "close", kept)
        yield serve


def check_tokens(rollouts: Any, serve: Any) -> None:
    """Trained ids are the engine's, each once, each after exactly the ids that the engine had read."""
    records = {record.session_id: record for record in serve.records}
    branches = [branch for rollout in rollouts for branch in rollout.trace.branches]
    recorded = [branch for record in records.values() for branch in record.branches]
    assert sorted(branch.ids.tolist() for branch in branches) == sorted(branch.ids.tolist() for branch in recorded)
    runs = []
    for branch in branches:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], branch.sampled.astype(int), [0]])))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            runs.append((branch.ids[:start].tolist(), branch.ids[start:end].tolist()))
            assert np.isfinite(branch.logprobs[start:end]).all() and (branch.versions[start:end] == 0).all()
    sampled = [(prompt, list(stream.result().token_ids)) for prompt, stream in serve.asked]
    assert sorted(runs) == sorted(sampled)


def command(mode: str = "plain", **options: Any) -> CommandHarnessConfig:
    line = f"{sys.executable} {PROGRAM} {mode} {{model}} {{prompt_file}}"
    return CommandHarnessConfig(command=line, place="host", **options)


@pytest.mark.slow(reason="programs with OpenAI's client")
def test_groups_of_a_program_are_trained_token_by_token(served: Any) -> None:
    address = served(small_state(TOKENIZER))
    rollouts = AgentRollouts(command(files=["notes.txt"], concurrency=2), address)
    groups = rollouts.play_tasks(Conversations(), "s", [0, 1], 2)
    flat = [rollout for group in groups for rollout in group]
    assert [len(group) for group in groups] == [2, 2] and not rollouts.counts
    assert [one.outcome.failure for one in flat] == [None] * 4, flat
    check_tokens(flat, served)
    for one in flat:
        assert one.episode.artefacts == {"files": {"notes.txt": "noted"}} and one.episode.finish_reason == "stop"
        assert one.outcome.rewards["even"] == float(len(one.episode.reply.text) % 2 == 0)
        assert one.trace.num_sampled == sum(branch.num_sampled for branch in one.branches) > 0
    assert len(served.asked) == 8 and len({one.rollout_id for one in flat}) == 4


@pytest.mark.slow(reason="a sandbox with OpenAI's client")
def test_a_program_in_a_sandbox_reaches_the_gateway_alone(served: Any, tmp_path: Path) -> None:
    socket = str(tmp_path / "gateway")
    address = served(small_state(TOKENIZER), socket)
    line = f"{sys.executable} {PROGRAM} plain {{model}} {{prompt_file}}"
    readable = [path for path in (sys.prefix, sys.base_prefix, str(PROGRAM.parent)) if not path.startswith("/usr")]
    config = CommandHarnessConfig(command=line, gateway_socket=socket, read_only=readable, answer_file="notes.txt")
    rollouts = AgentRollouts(config, address)
    flat = rollouts.play_tasks(Conversations(), "s", [0], 2)[0]
    assert [one.outcome.failure for one in flat] == [None] * 2
    check_tokens(flat, served)
    assert {one.episode.reply.text for one in flat} == {"noted"} and not rollouts.counts


def test_groups_of_the_loop_are_trained_token_by_token_and_tools_are_called(served: Any) -> None:
    def script(text: str) -> str:
        return "done<|user|>" if "<tool_response>" in text else CALL

    address = served(scripted_state(TOKENIZER, script))
    flat = AgentRollouts(LoopHarnessConfig(), address).play_tasks(Conversations(), "s", [0, 1], 2)
    check_tokens([one for group in flat for one in group], served)
    for one in flat[0] + flat[1]:
        assert [message.role for message in one.episode.messages] == ["user", "assistant", "tool", "assistant"]
        assert one.outcome.reward == 1.0 and len(one.branches) == 1
    assert [turn.drift for turn in served.records[0].turns] == ["new", "clean"]


def test_a_random_model_is_seeded_by_the_rollout(served: Any) -> None:
    address = served(small_state(TOKENIZER))
    setup = ChatSetup(max_new_tokens=5)
    played = [
        AgentRollouts(LoopHarnessConfig(), address, setup).play_tasks(Conversations(), "s", [0], 3) for _ in range(2)
    ]
    texts = [[one.branches[0].ids.tolist() for one in groups[0]] for groups in played]
    assert texts[0] == texts[1] and len({str(ids) for ids in texts[0]}) == 3
    assert all(one.branches[0].num_sampled <= 5 for one in played[0][0])


def test_time_and_limits_are_the_policys_own_and_what_is_there_is_graded(served: Any) -> None:
    address = served(scripted_state(TOKENIZER, lambda text: CALL))
    (late,) = AgentRollouts(LoopHarnessConfig(seconds=1.5), address).play_tasks(Conversations(seconds=60), "s", [0], 1)[
        0
    ]
    (limited,) = AgentRollouts(LoopHarnessConfig(max_turns=2), address).play_tasks(Conversations(), "s", [0], 1)[0]
    assert (late.episode.finish_reason, limited.episode.finish_reason) == ("timeout", "limit")
    for one, turns in ((late, 1), (limited, 2)):
        assert one.outcome.failure is None and one.outcome.reasons["even"] == one.episode.finish_reason
        assert sum(message.role == "assistant" for message in one.episode.messages) == turns
        assert one.trace.num_sampled > 0


@pytest.mark.slow(reason="programs with OpenAI's client")
def test_a_program_that_hangs_is_graded_and_one_that_crashes_is_tried_again_then_fails(served: Any) -> None:
    address = served(small_state(TOKENIZER))
    hanging = AgentRollouts(command("hang", seconds=15), address)
    (late,) = hanging.play_tasks(Conversations(), "s", [0], 1)[0]
    assert late.outcome.failure is None and late.episode.finish_reason == "timeout" and late.trace.num_sampled
    crashing = AgentRollouts(command("crash"), address)
    (crashed,) = crashing.play_tasks(Conversations(), "s", [0], 1)[0]
    assert crashed.outcome.failure.kind == "worker" and "the program is broken" in crashed.outcome.failure.reason
    assert crashing.counts == {"repeated_worker": 1} and not crashed.trace.num_sampled
    limited = AgentRollouts(command("plain", max_turns=1), address)
    (own,) = limited.play_tasks(Conversations(), "s", [0], 1)[0]  # the client raises at the second turn
    assert own.outcome.failure is None and own.episode.finish_reason == "limit" and not limited.counts


def test_a_broken_sandbox_is_tried_again_and_never_scored(served: Any) -> None:
    address = served(scripted_state(TOKENIZER, lambda text: "done<|user|>" if "<tool_response>" in text else CALL))
    once = AgentRollouts(LoopHarnessConfig(), address)
    (one,) = once.play_tasks(Conversations(broken=1), "s", [0], 1)[0]
    assert one.outcome.failure is None and once.counts == {"repeated_sandbox": 1}
    assert one.trace.num_sampled == served.records[-1].branches[0].num_sampled
    always = AgentRollouts(LoopHarnessConfig(attempts=3), address)
    (one,) = always.play_tasks(Conversations(broken=9), "s", [0], 1)[0]
    assert one.outcome.failure.kind == "sandbox" and not one.outcome.rewards and always.counts["repeated_sandbox"] == 2


def test_a_gateway_that_is_full_or_gone_is_a_failure_of_the_engine(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arcforge_rl.agents.gateway.PAUSE", 0.01)
    address = served(scripted_state(TOKENIZER, lambda text: "done<|user|>"))
    with pytest.raises(ConfigError, match="the gateway does not answer"):
        AgentRollouts(LoopHarnessConfig(), "http://127.0.0.1:9").play_tasks(Conversations(), "s", [0], 1)
    broken = AgentRollouts(LoopHarnessConfig(max_turns=1), address)
    opening = Gateway.open

    async def lost(self: Gateway, *given: Any) -> Any:
        return replace(await opening(self, *given), id="nobody")

    monkeypatch.setattr(Gateway, "open", lost)
    (one,) = broken.play_tasks(Conversations(), "s", [0], 1)[0]
    assert one.outcome.failure.kind == "engine" and broken.counts == {"repeated_engine": 1}


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("harness.command", {"command": ""}),
        ("harness.command", {"command": "run {task}"}),
        ("harness.command", {"command": "run 'open"}),
        ("harness.gateway_socket", {"command": "run", "place": "sandbox"}),
        ("harness.place", {"command": "run", "place": "moon"}),
        ("harness.seconds", {"command": "run", "seconds": float("nan")}),
        ("harness.max_turns", {"command": "run", "max_turns": 0}),
    ],
)
def test_bad_options_are_named(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as found:
        CommandHarnessConfig(**{"place": "host", **options}).check()
    assert found.value.field == field
