"""Agents before a gateway with a small model: tokens, groups, failures, limits, and a training step."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.chat.openai import options_from_openai, switches_of
from arcforge_core.contracts.chat import ChatOptions
from arcforge_core.episodes.agent import THINKING
from arcforge_core.errors import ConfigError
from arcforge_rl.agents.chat import ChatSetup
from arcforge_rl.agents.gateway import Gateway
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.configs.agents import CommandHarnessConfig, LoopHarnessConfig
from support.agent_tasks import CALL, Conversations, check_tokens, played
from support.servers import scripted_state, small_state
from support.sessions import TOKENIZER

PROGRAM = Path(__file__).parents[2] / "support" / "agent_program.py"


def command(mode: str = "plain", **options: Any) -> CommandHarnessConfig:
    line = f"{sys.executable} {PROGRAM} {mode} {{model}} {{prompt_file}}"
    return CommandHarnessConfig(command=line, place="host", **options)


@pytest.mark.slow(reason="programs with OpenAI's client")
def test_groups_of_a_program_are_trained_token_by_token(served: Any) -> None:
    address = served(small_state(TOKENIZER))
    rollouts = AgentRollouts(command(files=["notes.txt"], concurrency=2), address)
    setup = ChatSetup(3, 0.7, True, ChatOptions(clear_thinking=False))
    groups = played(rollouts, Conversations(), [0, 1], 2, setup)
    flat = [rollout for group in groups for rollout in group]
    asked = {(params.max_new_tokens, params.temperature, params.sampled_logprobs) for params in served.params}
    assert asked == {(3, 0.7, True)} and len({params.seed for params in served.params}) == 8
    assert all("<think></think>" not in TOKENIZER.decode(prompt) for prompt, _ in served.asked), (
        "the program asks for off"
    )
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
    flat = played(rollouts, Conversations(), [0], 2)[0]
    assert [one.outcome.failure for one in flat] == [None] * 2
    check_tokens(flat, served)
    assert {one.episode.reply.text for one in flat} == {"noted"} and not rollouts.counts


def test_groups_of_the_loop_are_trained_token_by_token_and_tools_are_called(served: Any) -> None:
    def script(text: str) -> str:
        return "done<|user|>" if "<tool_response>" in text else CALL

    address = served(scripted_state(TOKENIZER, script, record_experts=True))
    flat = played(AgentRollouts(LoopHarnessConfig(), address), Conversations(), [0, 1], 2)
    check_tokens([one for group in flat for one in group], served)
    for one in flat[0] + flat[1]:
        (branch,) = one.branches  # the trainer needs the experts of all but the last token
        assert branch.routed == len(branch) - 1
        assert [message.role for message in one.episode.messages] == ["user", "assistant", "tool", "assistant"]
        assert one.outcome.reward == 1.0 and len(one.branches) == 1
    assert [turn.drift for turn in served.records[0].turns] == ["new", "clean"]


def test_a_random_model_is_seeded_by_the_rollout(served: Any) -> None:
    address = served(small_state(TOKENIZER))
    setup = ChatSetup(max_new_tokens=5)
    tries = [played(AgentRollouts(LoopHarnessConfig(), address), Conversations(), [0], 3, setup)[0] for _ in range(2)]
    texts = [[one.branches[0].ids.tolist() for one in group] for group in tries]
    assert texts[0] == texts[1] and len({str(ids) for ids in texts[0]}) == 3
    assert all(one.branches[0].num_sampled <= 5 for one in tries[0])


def test_time_and_limits_are_the_policys_own_and_what_is_there_is_graded(served: Any) -> None:
    address = served(scripted_state(TOKENIZER, lambda text: CALL))
    (late,) = played(AgentRollouts(LoopHarnessConfig(seconds=600), address), Conversations(endless=True), [0], 1)[0]
    (limited,) = played(AgentRollouts(LoopHarnessConfig(max_turns=2), address), Conversations(), [0], 1)[0]
    assert (late.episode.finish_reason, limited.episode.finish_reason) == ("timeout", "limit")
    for one, turns in ((late, 1), (limited, 2)):
        assert one.outcome.failure is None and one.outcome.reasons["even"] == one.episode.finish_reason
        assert sum(message.role == "assistant" for message in one.episode.messages) == turns
        assert one.trace.num_sampled > 0


@pytest.mark.slow(reason="programs with OpenAI's client")
def test_a_program_that_hangs_is_graded_and_one_that_crashes_is_tried_again_then_fails(served: Any) -> None:
    address = served(small_state(TOKENIZER))
    for seconds in (6, 60):  # a busy machine may need more to start the program
        hanging = AgentRollouts(command("hang", seconds=seconds), address)
        (late,) = played(hanging, Conversations(), [0], 1)[0]
        if late.trace.num_sampled:
            break
    assert late.outcome.failure is None and late.episode.finish_reason == "timeout" and late.trace.num_sampled
    crashing = AgentRollouts(command("crash"), address)
    (crashed,) = played(crashing, Conversations(), [0], 1)[0]
    assert crashed.outcome.failure.kind == "worker" and "the program is broken" in crashed.outcome.failure.reason
    assert crashing.counts == {"repeated_worker": 1} and not crashed.trace.num_sampled
    limited = AgentRollouts(command("plain", max_turns=1), address)
    (own,) = played(limited, Conversations(), [0], 1)[0]  # the client raises at the second turn
    assert own.outcome.failure is None and own.episode.finish_reason == "limit" and not limited.counts


def test_a_broken_sandbox_is_tried_again_and_never_scored(served: Any) -> None:
    address = served(scripted_state(TOKENIZER, lambda text: "done<|user|>" if "<tool_response>" in text else CALL))
    once = AgentRollouts(LoopHarnessConfig(), address)
    (one,) = played(once, Conversations(broken=1), [0], 1)[0]
    assert one.outcome.failure is None and once.counts == {"repeated_sandbox": 1}
    assert one.trace.num_sampled == served.records[-1].branches[0].num_sampled
    always = AgentRollouts(LoopHarnessConfig(attempts=3), address)
    (one,) = played(always, Conversations(broken=9), [0], 1)[0]
    assert one.outcome.failure.kind == "sandbox" and not one.outcome.rewards and always.counts["repeated_sandbox"] == 2


def test_a_gateway_that_is_full_or_gone_is_a_failure_of_the_engine(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arcforge_rl.agents.gateway.PAUSE", 0.01)
    address = served(scripted_state(TOKENIZER, lambda text: "done<|user|>"))
    with pytest.raises(ConfigError, match="the gateway does not answer"):
        played(AgentRollouts(LoopHarnessConfig(), "http://127.0.0.1:9"), Conversations(), [0], 1)
    broken = AgentRollouts(LoopHarnessConfig(max_turns=1), address)
    opening = Gateway.open

    async def lost(self: Gateway, *given: Any) -> Any:
        return replace(await opening(self, *given), id="nobody")

    monkeypatch.setattr(Gateway, "open", lost)
    (one,) = played(broken, Conversations(), [0], 1)[0]
    assert one.outcome.failure.kind == "engine" and broken.counts == {"repeated_engine": 1}


@pytest.mark.parametrize("mode", THINKING)
def test_a_thinking_mode_survives_the_way_over_http(mode: str) -> None:
    assert options_from_openai({"chat_template_kwargs": switches_of(THINKING[mode])}) == THINKING[mode]


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
