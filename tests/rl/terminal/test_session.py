"""A terminal that stays: keys, screen, programs that live between calls, and hostile output."""

import asyncio

import pytest

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Agents, Reply
from arcforge_core.episodes.scripted import ScriptedAgent
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.environments import TerminalConfig
from arcforge_rl.sandbox.sync import shared_desk
from arcforge_rl.terminal import environment
from arcforge_rl.terminal.table import drawn_task
from arcforge_rl.terminal.worlds import Worlds

pytest.importorskip("pyte")
from arcforge_rl.terminal.session import MOST, ROWS, TerminalSession, bytes_of

TASK = drawn_task("processes", 1)[0]


def test_keys():
    assert bytes_of("ls <b>\n<Enter><ctrl-c><Ctrl-D><UP><Esc>:wq\r\nü") == b"ls <b>\r\r\x03\x04\x1b[A\x1b:wq\r\xc3\xbc"


def with_session(work):
    """Returns what an asynchronous function of a session returns."""

    async def run(backend):
        worlds = Worlds()
        world = await worlds.take(backend, TASK)
        sandbox = await world.open(backend)
        session = TerminalSession(sandbox, world, shared_desk().python)
        try:
            return await work(session)
        finally:
            await session.close()
            await sandbox.stop()
            await worlds.give_back(TASK)

    return asyncio.run(shared_desk().do(run))


async def until(session, keys, text, tries=30):
    """Presses keys, then looks until a text is on the screen."""
    screen = await session.press(keys, 2)
    for _ in range(tries):
        if text in screen:
            return screen
        screen = await session.press("", 1)
    raise AssertionError(f"{text!r} is not on the screen:\n{screen}")


@pytest.mark.slow(reason="a terminal on which several programs are started")
def test_a_terminal():
    async def work(session):
        assert "rows 30; columns 110" in await until(session, "stty -a\n", "columns")
        await until(session, "echo rea''dy; cat > typed; echo said $(wc -c < typed)\n", "ready")
        assert "said 6" in await until(session, "hello\n<Ctrl-D>", "said 6")
        await until(session, "sleep 1000 & echo number $((6 * 7))\n", "number 42")
        await until(session, "sleep 2000\n", "sleep 2000")
        assert "Running" in await until(session, "<Ctrl-C>jobs\n", "Running")
        gone = await until(session, "exit 3\n", "has ended")
        assert "[the terminal has ended: exit 3; keys start another]" in gone
        fresh = await until(session, "pwd\n", "/app")
        assert "number 42" not in fresh and "[cursor: row" in fresh

    with_session(work)


@pytest.mark.slow(reason="a terminal that is flooded")
def test_hostile_output():
    async def work(session):
        flood = await session.press("yes | head -c 200000; echo o''ver\n", 3)
        assert flood.count("\n") <= ROWS + 1
        await until(session, "", "over", tries=100)
        await until(session, "printf '\\033[?999;999X\\033[999999999A\\033]0;t\\007\\033[38;5;mfi''ne\\n'\n", "fine")

    assert MOST < 200_000
    with_session(work)


@pytest.mark.slow(reason="a play with a terminal")
def test_an_agent_with_a_session_alone():
    made = environment.Terminal(TerminalConfig(tools=["session"]))
    task = environment.TerminalTask("t", TASK.instruction, "", TASK, (), "processes")
    calls = [{"keys": "touch left\n", "wait": 3}, {"keys": "x", "wait": "long"}, {"keys": ""}]
    script = [Reply(calls=(ToolCall("session", call),)) for call in calls]
    script.insert(0, Reply(calls=(ToolCall("bash", {"command": "touch other"}),)))
    episode = asyncio.run(made.run(task, Agents(ScriptedAgent([*script, Reply("Done.")]))))
    results = [message.content for message in episode.messages if message.role == "tool"]
    assert results[0].startswith("Error: there is no tool 'bash'") and "touch left" in results[1]
    assert results[2] == "Error: wait must be a number of seconds" and episode.artefacts["flaw"] == ""


def test_without_the_extra(monkeypatch):
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs pyte: pip install 'arcforge-rl\[terminal\]'"):
        environment.Terminal(TerminalConfig(tools=["bash", "session"]))
    environment.Terminal(TerminalConfig())
