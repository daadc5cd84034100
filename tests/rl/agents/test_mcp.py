"""Tools of MCP servers in ``harness=loop``: in a sandbox, over HTTP, next to those of the environment."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp import MCPError
from mcp.types import CONNECTION_CLOSED

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import EpisodeFailure
from arcforge_core.errors import ConfigError
from arcforge_rl.agents.mcp import McpTools
from arcforge_rl.agents.rollouts import AgentRollouts
from arcforge_rl.configs.agents import LoopHarnessConfig
from support import mcp_server
from support.agent_tasks import CALL, Conversations, check_tokens, played
from support.clocks import MovedClock
from support.mcp_server import server
from support.servers import scripted_state
from support.sessions import TOKENIZER

PROGRAM = Path(__file__).parents[2] / "support" / "mcp_server.py"
READABLE = [path for path in (sys.prefix, sys.base_prefix, str(PROGRAM.parent)) if not path.startswith("/usr")]


def call(name: str, end: str = "<|observation|>") -> str:
    return f"<tool_call>{name}<arg_key>text</arg_key><arg_value>a word</arg_value></tool_call>{end}"


def policy(*replies: str) -> Any:
    """Says the replies in turn, by the number of results that it sees."""

    def script(text: str) -> str:
        return replies[min(text.count("<tool_response>"), len(replies) - 1)]

    return scripted_state(TOKENIZER, script)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = server.streamable_http_app()
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/mcp"
    running.should_exit = True
    thread.join()


def results(one: Any) -> list[str]:
    return [message.content for message in one.episode.messages if message.role == "tool"]


@pytest.mark.slow(reason="a program in a sandbox that imports the package mcp")
def test_a_program_in_a_sandbox_has_tools_beside_the_environments(served: Any) -> None:
    """The first reply calls the server's tool, the second one both in turn: results come in the order of the calls."""
    both = call("shout", "") + CALL.removeprefix("one").replace("<|observation|>", "") + call("refuse")
    address = served(policy(call("shout"), both, "", "", "done<|user|>"))
    config = LoopHarnessConfig(mcp_servers={"texts": f"{sys.executable} {PROGRAM}"}, read_only=READABLE)
    rollouts = AgentRollouts(config, address)
    (one,) = played(rollouts, Conversations(), [0], 1)[0]
    assert one.outcome.failure is None, one.outcome.failure
    found = results(one)
    assert found == ["A WORD", "A WORD", "two", "Error executing tool refuse"]
    roles = [message.role for message in one.episode.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "tool", "tool", "assistant"]
    assert one.episode.reply.text == "done" and len(one.branches) == 1 and not rollouts.counts
    check_tokens([one], served)


def test_a_server_over_http(served: Any, url: str) -> None:
    address = served(policy(call("shout"), call("shout"), "done<|user|>"))
    config = LoopHarnessConfig(mcp_servers={"far": url})
    (one,) = played(AgentRollouts(config, address), Conversations(), [0], 1)[0]
    assert results(one) == ["A WORD", "A WORD"] and one.episode.finish_reason == "stop"
    limited = LoopHarnessConfig(mcp_servers={"far": url}, max_tool_calls=1)
    (one,) = played(AgentRollouts(limited, address), Conversations(), [0], 1)[0]
    assert one.episode.finish_reason == "limit" and one.outcome.failure is None


def test_a_slow_call_is_the_policys_to_see_and_a_server_that_is_gone_a_failure(
    served: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clocked(Conversations):
        async def run(self, *arguments: Any) -> Any:
            clock = MovedClock()
            monkeypatch.setattr(mcp_server, "asleep", [lambda: clock.move(101)])
            return await super().run(*arguments)

    address = served(policy(call("sleep"), "done<|user|>"))
    config = LoopHarnessConfig(mcp_servers={"far": url}, mcp_seconds=100)
    (one,) = played(AgentRollouts(config, address), Clocked(), [0], 1)[0]
    assert results(one) == ["Error: sleep gave no result within 100 s"]
    gone = AgentRollouts(LoopHarnessConfig(mcp_servers={"far": "http://127.0.0.1:9/mcp"}), address)
    (one,) = played(gone, Conversations(), [0], 1)[0]
    assert one.outcome.failure.kind == "worker" and "far does not answer" in one.outcome.failure.reason
    assert gone.counts == {"repeated_worker": 1}


def test_a_server_that_dies_is_a_failure_and_one_that_refuses_is_not() -> None:
    class Client:
        async def call_tool(self, name: str, arguments: dict[str, Any]) -> None:
            raise MCPError(arguments["code"], "closed")

    tools = McpTools(LoopHarnessConfig())
    tools._client_of["f"] = Client()  # type: ignore[assignment]
    assert asyncio.run(tools.use(ToolCall("f", {"code": -32602}))).startswith("Error")
    with pytest.raises(EpisodeFailure, match="the MCP server of f is gone"):
        asyncio.run(tools.use(ToolCall("f", {"code": CONNECTION_CLOSED})))


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("harness.mcp_servers.a", {"mcp_servers": {"a": ""}}),
        ("harness.mcp_servers.a", {"mcp_servers": {"a": "run 'open"}}),
        ("harness.mcp_seconds", {"mcp_seconds": 0.0}),
        ("harness.max_tool_calls", {"max_tool_calls": 0}),
    ],
)
def test_bad_options_are_named(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as found:
        LoopHarnessConfig(**options)
    assert found.value.field == field


def test_two_servers_with_a_tool_of_the_same_name_are_refused(served: Any, url: str) -> None:
    config = LoopHarnessConfig(mcp_servers={"one": url, "two": url})
    with pytest.raises(ConfigError, match=r"harness\.mcp_servers='two': has the tool shout, as another server"):
        played(AgentRollouts(config, served(policy("done<|user|>"))), Conversations(), [0], 1)
