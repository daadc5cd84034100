"""The parts of ``benchmarks/async_rl.py``: its task, its latencies, and the arithmetic of its tables."""

import asyncio
import random
import statistics
import time
from importlib import import_module as module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.contracts.environment import Reply
from arcforge_core.episodes.lockstep import Lockstep
from arcforge_core.episodes.rollout import roll_out
from arcforge_core.episodes.scripted import ScriptedAgent, play
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.orchestrator.group import GroupKey
from arcforge_rl.orchestrator.scheduler import Start
from arcforge_rl.trainer.build import build_algorithm
from support.components import registered


def test_a_conversation_is_worth_the_share_of_its_right_answers() -> None:
    tools = module("_slow_tools")
    environment = tools.Errands(tools.ErrandsConfig(questions=3, below=20_000))
    task = environment.task(5)
    script = environment.oracle(task)
    episode, outcome = asyncio.run(play(environment, task, script))
    assert outcome.reward == 1.0 and outcome.rewards["calls"] == 3.0
    results = [message.content for message in episode.messages if message.role == "tool"]
    assert results == [str(eval(expression)) for expression in task.expressions]
    wrong = [*script[:3], Reply("1"), *script[4:]]
    assert asyncio.run(play(environment, task, wrong))[1].reward == pytest.approx(2 / 3)
    assert asyncio.run(play(environment, task, script[:3]))[1].reward == pytest.approx(1 / 3), "it stopped early"
    for cheat in environment.cheats(task):
        assert asyncio.run(play(environment, task, cheat))[1].reward == 0.0
    assert {environment.task(n).key for n in range(20)}.isdisjoint(
        tools.Errands(tools.ErrandsConfig(split="heldout")).task(n).key for n in range(20)
    )


def test_latencies_are_those_of_the_issue_and_the_same_for_every_schedule() -> None:
    tools = module("_slow_tools")
    config = tools.SlowErrandsConfig()
    drawn = [tools.latency(config, f"0/{n // 64}/0/{n % 64}", call) for n in range(2000) for call in range(3)]
    assert statistics.median(drawn) == pytest.approx(1.0, rel=0.05) and max(drawn) <= 30.0
    inside = sum(statistics.NormalDist().inv_cdf(0.1587) < 0 and 1 / 2.72 < one < 2.72 for one in drawn) / len(drawn)
    assert inside == pytest.approx(0.683, abs=0.02), "one standard deviation of the logarithm is 1"
    assert tools.latency(config, "0/3/0/7", 1) == tools.latency(config, "0/3/0/7", 1)
    assert (
        len({tools.latency(config, name, call) for name in ("0/3/0/7", "1/3/0/7", "0/3/0/8") for call in (0, 1)}) == 6
    )
    tenth = tools.SlowErrandsConfig(scale=10.0)
    assert tools.latency(tenth, "0/3/0/7", 1) == pytest.approx(tools.latency(config, "0/3/0/7", 1) / 10)


def test_calls_of_different_rollouts_wait_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rollouts of three calls, 0.1 s each, begin their waits together; those of one rollout do not overlap."""
    tools, together, sleep = module("_slow_tools"), asyncio.Barrier(10), asyncio.sleep

    async def ten(seconds: float) -> None:
        if seconds == 0.1:
            async with asyncio.timeout(60):
                await together.wait()
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", ten)
    environment = tools.SlowErrands(tools.SlowErrandsConfig(median=0.1, sigma=0.0))
    tasks = [environment.task(n) for n in range(10)]
    agents = [ScriptedAgent(environment.oracle(task)) for task in tasks]
    begun = time.monotonic()
    found = list(roll_out(environment, tasks, agents, Lockstep(None)))
    assert time.monotonic() - begun >= 0.3
    assert [rollout.outcome.reward for rollout in found] == [1.0] * 10


def test_seconds_to_a_reward_are_between_two_checkpoints() -> None:
    evaluate = module("_async_evaluate")
    curve = [(0, 0.0, 0.5), (5, 100.0, 0.7), (10, 200.0, 0.6), (15, 300.0, 0.9)]
    assert evaluate.seconds_to(curve, 0.6) == pytest.approx(50.0)
    assert evaluate.seconds_to(curve, 0.75) == pytest.approx(250.0)
    assert evaluate.seconds_to(curve, 0.95) is None


@pytest.mark.slow(reason="samples from the demo's model")
def test_a_checkpoint_is_judged_by_the_same_tasks_again() -> None:
    evaluate = module("_async_evaluate")
    judge = evaluate.Judge("demo", 3, 24, {"questions": 1})
    try:
        first, again = judge.reward(None), judge.reward(None)
    finally:
        judge.close()
    assert first == again and first * 3 == pytest.approx(round(first * 3))


def test_the_cost_of_a_decoding_step_is_found_from_a_runs_steps() -> None:
    simulate, rng = module("_async_simulate"), random.Random(0)
    steps = [(rng.randrange(50, 500), rng.uniform(2.0, 20.0)) for _ in range(30)]
    rows = [(0.004 * count + 0.0002 * count * batch, count, count * batch) for count, batch in steps]
    assert simulate.engine_cost(rows) == (pytest.approx(0.004), pytest.approx(0.0002))
    assert simulate.engine_cost([(2.0 * tokens, 1.0, tokens) for tokens in (1.0, 2.0, 3.0)]) == (
        pytest.approx(0.0, abs=1e-9), pytest.approx(2.0),
    )  # fmt: skip


def test_a_plan_has_a_runs_own_turns_and_latencies() -> None:
    simulate, tools = module("_async_simulate"), module("_slow_tools")
    call = {"function": {"name": "calculator", "arguments": {"expression": "1*2"}}}
    rollout: dict[str, Any] = {
        "length": 40,
        "messages": [
            {"role": "user", "content": "1*2"}, {"role": "assistant", "content": "", "tool_calls": [call, call]},
            {"role": "tool", "content": "2"}, {"role": "tool", "content": "2"},
            {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"},
            {"role": "assistant", "content": "3"},
        ],
    }  # fmt: skip
    tokens, calls = simulate.turns_of(rollout)
    assert calls == [2, 0] and abs(sum(tokens) - 40) <= 1 and tokens[0] > tokens[1] == tokens[2]
    plan = simulate.plan_of({"7/2/0/9": (tokens, calls)}, 7, 1.0, 4)
    turns, waits = plan(Start(GroupKey(2, 2), 1, 1))
    config = tools.SlowErrandsConfig()
    assert turns == tokens and waits == [sum(tools.latency(config, "7/2/0/9", n) for n in (0, 1)), 0]
    other = plan(Start(GroupKey(2, 2), 2, 1))[1]
    assert other == [sum(tools.latency(config, "7/2/0/10", n) for n in (0, 1)), 0], "aborted: its own latencies"


def test_a_recipe_is_frozen_with_the_folder(tmp_path: Path) -> None:
    rl = module("async_rl")
    names = [name for name in rl.Recipe.__dataclass_fields__ if name != "cores"]
    options = SimpleNamespace(**dict.fromkeys(names, 1), table=False)
    first = rl.Recipe.load(tmp_path, options)
    assert rl.Recipe.load(tmp_path, options) == first
    options.steps = 2
    with pytest.raises(SystemExit, match="steps 1 \\(now 2\\)"):
        rl.Recipe.load(tmp_path, options)
    options.table = True
    assert rl.Recipe.load(tmp_path, options) == first


def test_the_order_of_runs_and_a_sweep_that_ends_where_the_winner_is_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rl, every = module("async_rl"), module("_async_rows").rows_of(2)
    plan = rl.plan_of(every, range(2))
    assert plan[:6] == [(seed, row) for seed in (0, 1) for row in ("barrier", "oversampled", "async")]
    assert plan[6:8] == [(0, "one_step_off"), (0, "ppo")] and len(plan) == 8 + 2 * 4
    recipe = rl.Recipe("demo", 8, 4, 2, 2, 1e-4, 20_000, 2, 1.0, 4, 8, None, 2)
    ran: list[tuple[str, int]] = []
    seconds: dict[str, float] = {}

    def train(recipe: Any, row: Any, variant: Any, seed: int, place: Path) -> None:
        ran.append((variant.name, recipe.steps))

    def figures_of(folder: Path) -> dict[str, float]:
        return {"step_seconds": seconds[folder.parent.name.partition(".")[2]]}

    monkeypatch.setattr(rl, "train", train)
    monkeypatch.setattr(rl, "figures_of", figures_of)
    barrier, ppo = every["barrier"], every["ppo"]
    seconds |= {"continuous-6": 20.0, "lockstep-6": 30.0, "processes-6": 21.0, "continuous-x2-6": 60.0}
    seconds |= {"continuous-12": 22.0, "processes-12": 20.5}
    assert rl.chosen(recipe, every, ppo, tmp_path, 6).name == "processes", "as the barrier's sweep says"
    first = [(name, 6) for name in ("continuous-x2", "continuous", "lockstep", "processes")]
    assert ran == [*first, ("continuous", 12), ("processes", 12)]
    ran.clear()
    assert rl.chosen(recipe, every, barrier, tmp_path, 6).name == "processes" and not ran, "it is known"
    seconds |= {"plain-6": 10.0, "x2-6": 16.0}
    assert rl.chosen(recipe, every, every["oversampled"], tmp_path, 6).name == "x2", "8 s for each group's share"
    assert ran == [("x2", 6), ("plain", 6)], "the winner is clear"
    assert rl.chosen(recipe, every, every["async"], tmp_path, 6).name == "plain" and len(ran) == 2, "the only one"


def test_seconds_are_counted_to_the_reward_that_all_compared_rows_reach() -> None:
    rl, every = module("async_rl"), module("_async_rows").rows_of(2)
    curves = {"barrier": [0.5, 0.7, 0.6], "async": [0.5, 0.65, 0.8], "async_reset": [0.5, 0.5, 0.5]}
    runs = {
        name: [{"curve": [(step, 10.0 * step, reward) for step, reward in enumerate(rewards)]}]
        for name, rewards in curves.items()
    }
    assert rl.target_of(every, runs) == 0.7
    assert rl.target_of(every, {"async_reset": runs["async_reset"]}) is None


def test_every_row_is_a_run_that_can_be(tmp_path: Path) -> None:
    """All options of all rows and variants are known to the command and correct together; threads share the cores."""
    rl, rows, tools = module("async_rl"), module("_async_rows"), module("_slow_tools")
    with registered(tools.register, "errands", "slow_errands"):
        for cores in (1, 2, 8):
            recipe = rl.Recipe("demo", 8, 4, 2, 2, 1e-4, 20_000, 2, 1.0, 4, 8, 0.5, cores)
            for row in rows.rows_of(cores).values():
                assert len({variant.name for variant in row.variants}) == len(row.variants)
                for variant in row.variants:
                    command = rl.command_of(recipe, row, variant, 3, tmp_path / "run")
                    assert ("torch.distributed.run" in command) == (variant.processes > 1)
                    used = cores // 2 if row.apart else cores // variant.processes
                    assert f"trainer.threads={max(1, used)}" in command
                    if cores == 2 and (row.name == "barrier" or variant is row.variants[0]):
                        config = compose_config("rl", RlConfig, command[command.index("rl") + 1 :])
                        build_algorithm(config)
                        assert config.optimizer.lr == 1e-4 and config.seed == 3
                        assert config.rollout.groups * config.trainer.max_steps == 16
