"""Every environment is played by a scripted agent and by a small model, through the loop and through the gateway."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.environment import Environment, Reply
from arcforge_core.episodes.agent import SamplingSetup, build_dialogue
from arcforge_core.episodes.scripted import play
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model
from arcforge_rl.agents.chat import ChatSetup
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.configs.agents import LoopHarnessConfig
from arcforge_rl.rollouts.clock import Clock
from arcforge_rl.rollouts.collect import StepTasks, roll_out_groups
from conformance.test_environment import VARIANTS
from support.agent_tasks import check_tokens, played
from support.servers import scripted_state, small_state
from support.sessions import TOKENIZER

POSITIONS = 32_768
ACCOMPANIED = ("reviewed_math",)
"""Environments whose program asks a further agent, which a run with a harness refuses."""
SANDBOXES = ("swe", "terminal", "bfcl", "textworld", "miniwob", "slides")
"""Environments with sandboxes for each rollout, or with replies of thousands of tokens."""
PARAMS = [
    pytest.param(
        variant,
        id=f"{variant[0]}{len(variant[1]) or ''}",
        marks=[pytest.mark.nightly(reason="sandboxes or long replies")] * (variant[0] in SANDBOXES)
        + [pytest.mark.network] * (variant[0] == "miniwob"),
    )
    for variant in VARIANTS
    if variant[0] not in ACCOMPANIED
]


@pytest.fixture(params=PARAMS)
def environment(request: pytest.FixtureRequest) -> Environment:
    name, options = request.param
    component = registry().get("environment", name)
    found: Environment = component.load()(component.load_schema()(**options))
    return found


def written(reply: Reply) -> str:
    """Returns a reply as the small model's template has it."""
    calls = [
        f"<tool_call>{call.name}"
        + "".join(
            f"<arg_key>{name}</arg_key><arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
            for name, value in call.arguments.items()
        )
        + "</tool_call>"
        for call in reply.calls
    ]
    return reply.text + "".join(calls) + ("<|observation|>" if calls else "<|user|>")


@pytest.mark.slow(reason="an engine and a server for each of forty environments")
def test_the_oracle_earns_the_same_in_the_loop_and_before_the_gateway(served: Any, environment: Environment) -> None:
    task = environment.task(0)
    oracle = environment.oracle(task)
    _, outcome = asyncio.run(play(environment, task, oracle))
    assert outcome.failure is None and outcome.reward == 1.0
    left = iter(oracle)
    address = served(scripted_state(TOKENIZER, lambda text: written(next(left, Reply())), positions=POSITIONS))
    setup = ChatSetup(max_new_tokens=8_000)
    ((rollout,),) = played(AgentRollouts(LoopHarnessConfig(), address), environment, [0], 1, setup)
    assert rollout.outcome.failure is None, rollout.outcome.failure
    assert rollout.outcome.reward == 1.0, rollout.outcome.reasons
    check_tokens([rollout], served)


@pytest.mark.nightly(reason="an engine and a server for each of forty environments")
def test_a_small_model_is_judged_in_the_loop_and_before_the_gateway(served: Any, environment: Environment) -> None:
    model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=POSITIONS)
    engine = SimpleEngine(SimpleEngineConfig(), model)
    setup = SamplingSetup(build_dialogue(TOKENIZER, "off", "thinking"), 8, 1.0, POSITIONS)
    ((loop,),) = roll_out_groups(StepTasks(environment, "s", [0], 1), engine, setup, Clock())
    address = served(small_state(TOKENIZER, model, cache_tokens=POSITIONS))
    ((agent,),) = played(AgentRollouts(LoopHarnessConfig(), address), environment, [0], 1, ChatSetup(max_new_tokens=8))
    for rollout in (loop, agent):
        assert rollout.outcome.failure is None, rollout.outcome.failure
        assert 0.0 <= rollout.outcome.reward <= 1.0 and rollout.trace.num_sampled > 0
    check_tokens([agent], served)
