"""Task services in other processes play as the environment here does, and whatever they do wrong is typed."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.environment import Agents, Episode, EpisodeFailure, Outcome, Reply, Script
from arcforge_core.episodes.scripted import ScriptedAgent, play
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.environments import ToolMathConfig
from arcforge_rl.environments.tool_math import ToolMath
from arcforge_rl.orchestrator.services import far
from arcforge_rl.orchestrator.services.far import FarEnvironment
from arcforge_rl.orchestrator.services.lines import HttpLine, ProgramLine, with_commands
from support import odd_service
from support.odd_service import WAYS

SERVE = ["arcforge-env", "serve", "environment=tool_math", "environment.tools=[calculator]"]
ODD = [sys.executable, odd_service.__file__]
HERE = ToolMath(ToolMathConfig(tools=["calculator"]))


class Recorder(ScriptedAgent):
    """Keeps what it was asked."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.asked: list[tuple[list[Message], list[Tool]]] = []

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        self.asked.append((list(messages), list(tools)))
        return await super().reply(messages, tools, options)


async def both_ways(there: FarEnvironment) -> None:
    """Plays three tasks here and there, with the oracle and with silence: conversations and verdicts are equal."""
    try:
        await there.describe()
        for number in range(3):
            task = HERE.task(number)
            for script in (HERE.oracle(task), [Reply()]):
                first, second = Recorder(script), Recorder(script)
                here = await HERE.run(task, Agents(first))
                far_task = there.task(number)
                episode = await there.run(far_task, Agents(second))
                assert second.asked == first.asked and len(first.asked[0][1]) == 1
                assert episode.messages == here.messages and episode.finish_reason == here.finish_reason
                outcome = await HERE.score(task, here)
                assert await there.score(far_task, episode) == outcome
                assert outcome.reward == float(script is not None and len(script) > 1)
        assert far_task.key == "there/2" and there.domain_of(far_task) == "there"
        assert not there.line.counts
    finally:
        await there.close()


@pytest.mark.slow(reason="starts a program")
def test_a_program_plays_as_the_environment_here_does() -> None:
    asyncio.run(both_ways(FarEnvironment("there", ProgramLine("there", SERVE))))


@contextmanager
def served() -> Iterator[str]:
    """Runs ``arcforge-env serve port=0``; yields its address."""
    process = subprocess.Popen([*SERVE, "port=0"], stderr=subprocess.PIPE, text=True, env=with_commands())
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"http://\S+", line):
                yield found[0]
                return
        raise AssertionError("it ended without an address")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


@pytest.mark.slow(reason="starts a server")
def test_a_service_over_http_plays_as_the_environment_here_does() -> None:
    with served() as url:
        asyncio.run(both_ways(FarEnvironment("there", HttpLine("there", url))))


def test_whatever_a_service_answers_is_typed_and_reaches_no_other_rollout() -> None:
    async def run() -> None:
        line = ProgramLine("odd", ODD)
        there = FarEnvironment("odd", line)
        await there.describe()

        async def played(way: str) -> tuple[Episode, Outcome] | str:
            try:
                async with asyncio.timeout(0.3 if way == "never" else 20):
                    return await play(there, there.task(WAYS.index(way)), [Reply(way)])
            except (EpisodeFailure, TimeoutError) as error:
                return repr(error.failure) if isinstance(error, EpisodeFailure) else "time is over"

        async def good(way: str) -> None:
            found = await played(way)
            assert not isinstance(found, str), found
            assert found[0].reply.text == way and found[1].reward == 1.0

        try:
            await good("well")
            assert await played("raises") == "Failure(kind='sandbox', reason='service odd: it broke')"
            await good("twice")
            assert line.counts == {"twice": 1}
            assert await played("never") == "time is over"
            assert "answers for rollout 'another' in place of" in str(await played("other"))
            assert "Failure(kind='worker'" in str(await played("other"))
            await good("garbage")
            await good("stray")
            assert line.counts["stray"] == 2
            for way in ("no episode", "unknown message"):
                found = str(await played(way))
                assert "kind='worker'" in found and "service odd gives an answer that is none" in found
            await good("late")
            assert line.counts["late"] == 1
            ways = ("dies", "never", "never")
            ended = await asyncio.gather(*map(played, ways))
            # 255 where asyncio finds that a signal sent at that moment has already taken the code
            assert re.search(r"its program ended with code (3|255)\b", str(ended[0])), "all that it had fail with it"
            await good("well")
            assert line.counts["restarts"] == 1 and line.counts["twice"] == 1
        finally:
            await there.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (ProgramLine("gone", ["/no/such/program"]), "cannot be reached: service gone: its program is not there"),
        (ProgramLine("gone", [sys.executable, "-c", "pass"]), "cannot be reached: service gone: its program ended"),
        (HttpLine("gone", "http://127.0.0.1:9"), "cannot be reached: service gone at http://127.0.0.1:9: ConnectError"),
        (ProgramLine("gone", ["sleep", "60"]), "does not answer within 0.5 s"),
    ],
)
def test_a_service_that_is_not_there_is_refused_before_work(
    line: ProgramLine | HttpLine, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far, "DESCRIBE_SECONDS", 0.5 if "sleep" in getattr(line, "command", ()) else 20.0)
    monkeypatch.setattr(far, "PAUSE", 0.01)

    async def run() -> None:
        there = FarEnvironment("gone", line)
        try:
            await there.describe()
        finally:
            await there.close()

    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        asyncio.run(run())
    assert caught.value.field == "collection.services.gone"
