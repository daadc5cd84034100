"""Contexts of long conversations: their prompts, and the trained tokens."""

from __future__ import annotations

from typing import Any

import pytest

from arcforge_core.contracts.chat import Message, ToolCall
from arcforge_core.errors import ConfigError
from arcforge_rl.agents.context import OMITTED, Context
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.algorithms.scoring import advantages, shares
from arcforge_rl.configs.agents import LoopHarnessConfig
from arcforge_rl.configs.algorithms import GrpoConfig
from support.agent_tasks import CALL, Conversations, check_tokens, played
from support.servers import scripted_state
from support.sessions import TOKENIZER

QUESTION = Message("user", "q")


def round_(number: int) -> list[Message]:
    call = ToolCall("f", {"a": str(number)})
    return [Message("assistant", "", f"r{number}", (call,)), Message("tool", f"o{number}")]


def conversation(rounds: int) -> list[Message]:
    return [QUESTION, *(message for number in range(rounds) for message in round_(number))]


def test_older_results_are_omitted_and_reasoning_and_calls_stay() -> None:
    context = Context(keep_recent=5)
    assert context.shown(conversation(5)) == conversation(5)
    shown = context.shown(conversation(7))
    assert [m.content for m in shown if m.role == "tool"] == [OMITTED, OMITTED, "o2", "o3", "o4", "o5", "o6"]
    assert [m for m in shown if m.role != "tool"] == [m for m in conversation(7) if m.role != "tool"]


def test_beyond_the_limit_every_round_is_left_out_and_the_next_ones_stay() -> None:
    context = Context(keep_recent=1, discard_all=100)
    context.measured(100)
    assert len(context.shown(conversation(2))) == 5
    context.measured(101)
    assert context.shown(conversation(3)) == [QUESTION]
    context.measured(50)
    assert context.shown(conversation(4)) == [QUESTION, *round_(3)]
    assert [m.content for m in context.shown(conversation(5)) if m.role == "tool"] == [OMITTED, "o4"]
    assert context.shown([Message("user", "another"), *round_(0)]) == [Message("user", "another"), *round_(0)]
    assert Context().shown(conversation(9)) == conversation(9) and not Context().overflows(conversation(9))


def answers(text: str) -> str:
    """Calls, after a word that differs with the number of results."""
    return CALL.replace("one<tool_call>", f"{text.count('<tool_response>')}<tool_call>")


@pytest.mark.parametrize(
    ("options", "sampled", "begun"),
    [
        ({}, [4], 1),
        ({"keep_recent": 1}, [2, 1, 1], 1),
        ({"discard_all": 500}, [2, 2], 2),
        ({"keep_recent": 1, "discard_all": 520}, [2, 1, 1], 2),
    ],
)
def test_a_rollout_of_several_branches_counts_once_and_its_tokens_are_trained_once(
    served: Any, options: dict[str, int], sampled: list[int], begun: int
) -> None:
    """Four turns of 12 tokens, by branch; `begun`: how many prompts are the question alone."""
    address = served(scripted_state(TOKENIZER, answers))
    group = played(AgentRollouts(LoopHarnessConfig(**options), address), Conversations(), [0], 2)[0]
    check_tokens(group, served)
    shortest = min(len(prompt) for prompt, _ in served.asked)
    assert sum(len(prompt) == shortest for prompt, _ in served.asked) == 2 * begun
    for one in group:
        assert [branch.num_sampled for branch in one.branches] == [12 * turns for turns in sampled]
        assert one.trace.num_sampled == 48
        assert len(one.episode.messages) == 8, "the verifier reads the whole conversation"
    traces = [one.trace for one in group]
    traces[0].rewards = {"reward": 1.0}
    traces[1].rewards = {"reward": 0.0}
    config = GrpoConfig()
    found = advantages(traces, config)
    assert found[0] == -found[1] > 0 and shares(traces, config) == [1 / 96, 1 / 96], "a rollout counts once"


def test_a_conversation_without_room_is_discarded_and_asked_again(served: Any) -> None:
    state = scripted_state(TOKENIZER, answers)
    address = served(state)
    loop = LoopHarnessConfig(discard_all=100_000)
    (one,) = played(AgentRollouts(loop, address), Conversations(max_calls=2, result="word " * 9000), [0], 1)[0]
    assert len(one.branches) == 3 and one.episode.finish_reason == "calls"


@pytest.mark.parametrize("options", [{"keep_recent": 0}, {"discard_all": 0}])
def test_contexts_without_anything_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"harness.{next(iter(options))}"):
        LoopHarnessConfig(**options)
