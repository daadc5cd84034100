"""Tools run in the sandbox, for the rollout that calls them, and not without end."""

import asyncio
import os

import pytest

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Failure, Reply
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.episodes.lockstep import Lockstep
from arcforge_core.episodes.rollout import roll_out
from arcforge_core.episodes.scripted import ScriptedAgent, play
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.environments import ToolMathConfig
from arcforge_rl.environments.tool_math import ToolMath
from arcforge_rl.problems.problem import side
from arcforge_rl.sandbox.sync import Desk

ENDLESS = pytest.mark.slow(reason="a tool may compute for five seconds")


def called(environment, task, *calls, answer="0"):
    replies = [Reply(calls=(ToolCall(task.tool, arguments),)) for arguments in calls]
    return asyncio.run(play(environment, task, [*replies, Reply(answer)]))


@pytest.fixture(scope="module")
def python():
    environment = ToolMath(ToolMathConfig(tools=["python"], max_calls=3))
    return environment, environment.task(0)


def results(episode):
    return [message.content for message in episode.messages if message.role == "tool"]


def test_files_last_for_one_rollout(python):
    environment, task = python
    write = {"code": "open('note', 'w').write('kept')"}
    read = {"code": "import os; print(os.path.exists('note') and open('note').read())"}
    assert results(called(environment, task, write, read)[0])[1] == "kept"
    assert results(called(environment, task, read)[0]) == ["False"]


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("1/0", "Error: ZeroDivisionError"),
        ("print('x' * 50_000)", "more characters]"),
        ("print('x' * 100_000_000)", "Error: the tool ended with"),
        pytest.param("print(9**9**9)", "Error: the tool ended with", marks=ENDLESS),
        ("import socket; socket.create_connection(('1.1.1.1', 53))", "Error: "),
        (5, "Error: "),
        (None, "Error: "),
    ],
)
def test_any_program_has_a_bounded_result(python, code, result):
    environment, task = python
    episode, outcome = called(environment, task, {"code": code}, answer=task.answer)
    assert result in results(episode)[0] and len(results(episode)[0]) < 11_000
    assert outcome.reward == 1.0, "the answer counts, whatever the tool said"
    assert outcome.rewards["used_tool"] == float("more characters" in result)


def test_who_calls_once_more_scores_nothing(python):
    environment, task = python
    three = called(environment, task, *[{"code": "print(1)"}] * 3, answer=task.answer)
    four = called(environment, task, *[{"code": "print(1)"}] * 4, answer=task.answer)
    assert three[1].reward == 1.0
    assert four[1].reward == 0.0 and four[1].reasons["reward"] == "the conversation ended with calls"


def test_a_sandbox_that_breaks_is_a_failure_and_not_an_error_to_read(python, monkeypatch):
    environment, task = python

    async def broken(desk, work):
        raise SandboxFault("no space left")

    monkeypatch.setattr(Desk, "do", broken)
    agent = ScriptedAgent([Reply(calls=(ToolCall(task.tool, {"code": "print(1)"}),)), Reply(task.answer)])
    (rollout,) = roll_out(environment, [task], [agent], Lockstep(None))
    assert rollout.outcome.failure == Failure("sandbox", "no space left")


def test_tools_wait_side_by_side(python, monkeypatch):
    """Not as many at a time as there are threads: `asyncio` has six for two processors."""
    environment, task = python
    sleep = {"code": "import time; time.sleep(2); print(1)"}
    count = max(24, 4 * ((os.cpu_count() or 1) + 4))
    running, most = 0, 0
    do = Desk.do

    async def counted(desk, work):
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await do(desk, work)
        finally:
            running -= 1

    monkeypatch.setattr(Desk, "do", counted)
    agents = [ScriptedAgent([Reply(calls=(ToolCall(task.tool, sleep),)), Reply(task.answer)]) for _ in range(count)]
    found = list(roll_out(environment, [task] * count, agents, Lockstep(None)))
    assert all(rollout.outcome.rewards["used_tool"] == 1.0 for rollout in found)
    assert most == count


@pytest.mark.parametrize("tool", ["calculator", "python"])
def test_oracles_call_and_the_split_is_that_of_the_conversations(tool):
    environment = ToolMath(ToolMathConfig(tools=[tool], split="heldout"))
    for index in range(3):
        task = environment.task(index)
        episode, outcome = asyncio.run(play(environment, task, environment.oracle(task)))
        assert outcome.rewards == {"reward": 1.0, "correct": 1.0, "used_tool": 1.0}
        assert results(episode) == [task.answer]
        assert tool == "calculator" or side("python", task.prompt) == "heldout"


@pytest.mark.parametrize(("field", "value"), [("tools", []), ("tools", ["shell"]), ("max_calls", 0), ("seed", -1)])
def test_bad_config_is_named(field, value):
    with pytest.raises(ConfigError, match=rf"environment\.{field}="):
        ToolMathConfig(**{field: value})
