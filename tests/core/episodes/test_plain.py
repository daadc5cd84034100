"""The adapter: a plain class is an environment, its documented methods are tools."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

from arcforge_core.config.schema import EnvironmentConfig
from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Agents, Reply
from arcforge_core.episodes.plain import PlainEnvironment, tool_of
from arcforge_core.episodes.scripted import ScriptedAgent, play
from arcforge_core.errors import ConfigError
from arcforge_core.testing import EnvironmentSuite


def module():
    spec = importlib.util.spec_from_file_location("guess_environment", Path(__file__).with_name("guess.py"))
    made = importlib.util.module_from_spec(spec)
    sys.modules["guess_environment"] = made
    spec.loader.exec_module(made)
    return made


guess = module()


class TestGuess(EnvironmentSuite):
    examples = 15

    @pytest.fixture
    def make_environment(self):
        return lambda split: guess.GuessEnvironment(EnvironmentConfig(name="guess", split=split))


@pytest.fixture
def environment():
    return guess.GuessEnvironment(EnvironmentConfig(name="guess"))


def asked(number):
    return Reply(calls=(ToolCall("compare", {"number": number}),))


def test_tools_see_the_object_of_their_rollout(environment):
    task = environment.task(0)
    secret = int(environment.oracle(task)[0].text)
    script = [asked(secret - 1), asked(secret + 1), asked(secret), Reply(str(secret))]
    episode, outcome = asyncio.run(play(environment, task, script))
    assert [m.content for m in episode.messages if m.role == "tool"] == ["larger", "smaller", "equal"]
    assert outcome.rewards == {"reward": 1.0, "rewarded": 1.0}
    without = asyncio.run(play(environment, task, [Reply(str(secret))]))[1]
    assert without.reward == 1.0
    late = asyncio.run(play(environment, task, [asked(n) for n in range(8)] + [Reply(str(secret))]))[1]
    assert late.reward == 0.5, "the object counts its calls, in the verifier's process, too"


def test_tools_are_defined_by_their_signature(environment):
    assert [tool.name for tool in environment.tools] == ["compare"]
    assert environment.tools[0].definition["function"] == {
        "name": "compare",
        "description": "Compares a number with the secret one.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer"}, "loud": {"type": "boolean"}},
            "required": ["number"],
        },
    }


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (ToolCall("compare", {"number": "x"}), "Error: TypeError"),
        (ToolCall("compare", {}), "Error: compare misses number"),
        (ToolCall("compare", {"number": 1, "z": 2}), "Error: compare does not take z"),
        (ToolCall("reset", {"secret": 1}), "Error: there is no tool 'reset', only compare"),
        (ToolCall("_secret", {}), "Error: there is no tool"),
        (ToolCall("compare", {"number": 1, "loud": True}), "\n[990,000 more characters]"),
    ],
)
def test_wrong_calls_get_an_error_to_read(environment, call, result):
    episode, _ = asyncio.run(play(environment, environment.task(0), [Reply(calls=(call,)), Reply("1")]))
    assert result in episode.messages[2].content


def test_calls_are_limited(environment):
    endless = Agents(ScriptedAgent([asked(1)] * 100))
    episode = asyncio.run(environment.run(environment.task(0), endless))
    assert episode.finish_reason == "calls"
    assert sum(message.role == "tool" for message in episode.messages) == environment.max_calls
    many = Reply(calls=asked(1).calls * 50)
    assert asyncio.run(environment.run(environment.task(0), Agents(ScriptedAgent([many])))).finish_reason == "calls"
    cut = Reply(calls=asked(1).calls, finish_reason="length")
    assert asyncio.run(environment.run(environment.task(0), Agents(ScriptedAgent([cut])))).finish_reason == "length"


def test_tools_without_words_or_types_are_refused():
    class Silent:
        def tool(self, x: int) -> str:
            return ""

    class Untyped:
        def tool(self, x) -> str:
            """Does."""
            return ""

    with pytest.raises(ConfigError, match="docstring"):
        tool_of(Silent, "tool")
    with pytest.raises(ConfigError, match=r"tool\(x\).*one of the types str, int"):
        tool_of(Untyped, "tool")


def test_a_side_without_rows_is_refused():
    class Few(PlainEnvironment):
        plain, rows = guess.Guess, ()

    with pytest.raises(ConfigError, match="none of 0 rows"):
        Few(EnvironmentConfig(name="few"))
