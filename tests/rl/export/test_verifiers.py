"""Tasks, play and verdicts of an exported environment, against a small imitation of the library."""

import asyncio
import importlib
import sys
import types
from dataclasses import asdict

import pytest

from arcforge_core.contracts.environment import Failure, Outcome
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.environments import MathConfig, ToolMathConfig
from arcforge_rl.export.playing import Exported, environment_of
from support import fake_verifiers as vf
from support.oracle_server import oracle_server


@pytest.fixture
def ours(monkeypatch):
    package = types.ModuleType("verifiers")
    package.v1 = vf
    monkeypatch.setitem(sys.modules, "verifiers", package)
    monkeypatch.setitem(sys.modules, "verifiers.v1", vf)
    monkeypatch.delitem(sys.modules, "arcforge_rl.export.verifiers", raising=False)
    yield importlib.import_module("arcforge_rl.export.verifiers")
    del sys.modules["arcforge_rl.export.verifiers"]


def made(ours, config, **chosen):
    exported = Exported(asdict(config), {})
    taskset = type("Tasks", (ours.ArcforgeTaskset,), {"exported": exported})(ours.ArcforgeTasksetConfig(**chosen))
    return taskset, type("Plays", (ours.ArcforgeHarness,), {"exported": exported})(vf.HarnessConfig(id="plays"))


async def rolled_out(ours, harness, task, model, url, trace):
    """Plays and scores in the library's order."""
    await harness.launch(vf.ModelContext(model), trace, None, f"{url}/v1", "secret", {}, task.data)
    return await scored(task, trace)


async def scored(task, trace):
    await task.finalize(trace, None)
    return await task.reward(trace), await task.figures(trace)


@pytest.mark.parametrize("config", [MathConfig(), ToolMathConfig(tools=["calculator"])], ids=lambda one: one.name)
def test_the_oracle_earns_1_and_silence_0(ours, config):
    taskset, harness = made(ours, config)
    tasks = taskset.load()
    with oracle_server(taskset.environment, 2) as (url, asked):
        for task, model, wanted in zip((next(tasks), next(tasks)), ("oracle", "silent"), (1.0, 0.0), strict=True):
            trace = vf.Trace(state=ours.ArcforgeState())
            reward, figures = asyncio.run(rolled_out(ours, harness, task, model, url, trace))
            assert reward == wanted and figures["correct"] == wanted and "reward" not in figures
            assert trace.info["arcforge"]["reasons"]["correct"]
            assert asked[-1]["messages"][0]["content"] == task.data.prompt
            assert asyncio.run(task.validate(None))


def test_a_trace_without_a_turn_is_scored_as_silence(ours):
    task = next(made(ours, MathConfig())[0].load())
    assert asyncio.run(scored(task, vf.Trace(state=ours.ArcforgeState())))[0] == 0.0


def test_an_episode_that_did_not_end_has_no_reward(ours):
    task = next(made(ours, MathConfig())[0].load())
    trace = vf.Trace(state=ours.ArcforgeState(), stop_condition="agent_timeout")
    with pytest.raises(vf.TaskError, match="did not end: agent_timeout"):
        asyncio.run(scored(task, trace))
    with pytest.raises(vf.TaskError, match="was not scored"):
        asyncio.run(task.reward(trace))


def test_a_server_that_fails_is_no_reward(ours, monkeypatch):
    monkeypatch.setattr("arcforge_rl.endpoints.PAUSE", 0.0)
    taskset, harness = made(ours, MathConfig())
    with oracle_server(taskset.environment, 1) as (url, asked):
        trace = vf.Trace(state=ours.ArcforgeState())
        with pytest.raises(vf.ProviderError, match="the disk is full"):
            asyncio.run(rolled_out(ours, harness, next(taskset.load()), "broken", url, trace))
    assert len(asked) == ours.ATTEMPTS and trace.info == {}


@pytest.mark.parametrize(
    ("kind", "error"), [("sandbox", "SandboxError"), ("engine", "ProviderError"), ("verifier", "TaskError")]
)
def test_failures_of_the_verdict_are_the_librarys_errors(ours, monkeypatch, kind, error):
    task = next(made(ours, MathConfig())[0].load())
    environment = environment_of(task.data.environment)

    async def failed(*_):
        return Outcome.failed(Failure(kind, "it broke"))

    monkeypatch.setattr(environment, "score", failed)
    with pytest.raises(getattr(vf, error), match=f"{kind}: it broke"):
        asyncio.run(scored(task, vf.Trace(state=ours.ArcforgeState())))


def test_a_sandbox_that_breaks_in_play_is_an_error_of_the_sandbox(ours, monkeypatch):
    taskset, harness = made(ours, MathConfig())

    async def breaks(*_):
        raise SandboxFault("the disk is full")

    monkeypatch.setattr(taskset.environment, "run", breaks)
    trace = vf.Trace(state=ours.ArcforgeState())
    with pytest.raises(vf.SandboxError, match="sandbox: the disk is full"):
        asyncio.run(rolled_out(ours, harness, next(taskset.load()), "oracle", "http://127.0.0.1:9", trace))


def test_what_an_environment_raises_is_an_error_of_the_task(ours, monkeypatch):
    taskset, harness = made(ours, MathConfig())
    task = next(taskset.load())

    async def raises(*_):
        raise KeyError("lost")

    monkeypatch.setattr(taskset.environment, "run", raises)
    trace = vf.Trace(state=ours.ArcforgeState())
    with pytest.raises(vf.TaskError, match="environment: KeyError: 'lost'"):
        asyncio.run(rolled_out(ours, harness, task, "oracle", "http://127.0.0.1:9", trace))


def test_the_split_and_the_options(ours):
    config = MathConfig()
    train, heldout = (made(ours, config, split=split)[0] for split in ("train", "heldout"))
    keys = [{task.data.id for task, _ in zip(one.load(), range(20), strict=False)} for one in (train, heldout)]
    assert keys[0].isdisjoint(keys[1]) and train.INFINITE
    assert made(ours, MathConfig(split="heldout"))[0].fields["split"] == "heldout"  # as exported
    small = made(ours, config, options={"kinds": ["arithmetic"], "digits": 1})[0]
    assert all("+" in t.data.prompt or "-" in t.data.prompt for t, _ in zip(small.load(), range(5), strict=False))
    with pytest.raises(ConfigError, match=r"environment\.digts"):
        made(ours, config, options={"digts": 1})
    with pytest.raises(ValueError, match="train"):
        made(ours, config, split="test")


def test_a_foreign_row_is_refused(ours):
    harness = made(ours, MathConfig())[1]
    with pytest.raises(ValueError, match="taskset 'plays' only"):
        asyncio.run(harness.launch(vf.ModelContext("m"), vf.Trace(), None, "", "", {}, vf.TaskData(prompt="a")))


def test_rows_hold_no_answers(ours):
    taskset, _ = made(ours, MathConfig(kinds=["arithmetic"]))
    task = next(taskset.load())
    assert taskset.environment.task(0).answer not in str(task.data.model_dump(exclude={"prompt", "id", "name"}))


def test_one_environment_for_all_rows():
    fields = asdict(MathConfig())
    assert environment_of(fields) is environment_of(dict(reversed(fields.items())))
