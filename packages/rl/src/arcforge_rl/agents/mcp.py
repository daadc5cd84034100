"""Tools of MCP servers: programs in a sandbox, over their standard streams, or servers over HTTP."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from arcforge_core.contracts.chat import Tool, ToolCall
from arcforge_core.contracts.environment import EpisodeFailure
from arcforge_core.contracts.sandbox import Command, SandboxBackend
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.agents import LoopHarnessConfig
from arcforge_rl.sandbox.mcp_streams import streams_of

if TYPE_CHECKING:
    from mcp import Client

LONGEST_LINE = 1 << 20
"""Bytes of a message of a program."""
WORKER = "worker"
"""Kind of the failure of a server that is gone."""


def check_installed(config: LoopHarnessConfig) -> None:
    """Checks that the package of the client is there, if servers are configured.

    Raises:
        ConfigError: it is not.
    """
    if config.mcp_servers:
        try:
            import mcp  # noqa: F401
        except ImportError as error:
            accepted = "needs the package mcp: pip install 'arcforge-rl[mcp]'"
            raise ConfigError("harness.mcp_servers", sorted(config.mcp_servers), accepted) from error


class McpTools:
    """The tools of connected servers.

    Attributes:
        tools: of all servers.
    """

    def __init__(self, config: LoopHarnessConfig) -> None:
        self.config = config
        self.tools: list[Tool] = []
        self._client_of: dict[str, Client] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._client_of

    async def add(self, name: str, client: Client) -> None:
        """Takes the tools of a server.

        Raises:
            ConfigError: another server has a tool of the same name.
        """
        listed: Any = await client.list_tools()
        for tool in listed.tools:
            if tool.name in self:
                raise ConfigError("harness.mcp_servers", name, f"has the tool {tool.name}, as another server does")
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            self.tools.append(Tool({"type": "function", "function": function}))
            self._client_of[tool.name] = client

    async def use(self, call: ToolCall) -> str:
        """Returns the texts of a call's result; that of a failed call begins with ``Error``.

        Raises:
            EpisodeFailure: the server is gone.
        """
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        seconds = self.config.mcp_seconds
        try:
            async with asyncio.timeout(seconds):
                result: Any = await self._client_of[call.name].call_tool(call.name, dict(call.arguments))
        except TimeoutError:
            return f"Error: {call.name} gave no result within {seconds:g} s"
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise EpisodeFailure(WORKER, f"the MCP server of {call.name} is gone: {error}") from error
            return f"Error: {error}"
        texts = "\n".join(block.text for block in result.content if block.type == "text")
        return f"Error: {texts}" if result.is_error and not texts.startswith("Error") else texts


@asynccontextmanager
async def connected(config: LoopHarnessConfig, backend: SandboxBackend | None) -> AsyncIterator[McpTools]:
    """Connects to the configured servers; programs start in sandboxes of this rollout. The block must not raise.

    Args:
        config: has the servers.
        backend: of the sandboxes; None if all are URLs.

    Raises:
        ConfigError: two servers have tools of the same name.
        EpisodeFailure: a server does not answer.
    """
    tools, found = McpTools(config), None
    async with AsyncExitStack() as stack:
        try:
            for name, server in config.mcp_servers.items():
                await _connect(tools, name, server, stack, backend)
        except Exception as error:  # raised outside: the client's tasks would wrap it
            found = error
        else:
            yield tools
    if found is not None:
        raise found


async def _connect(
    tools: McpTools, name: str, server: str, stack: AsyncExitStack, backend: SandboxBackend | None
) -> None:
    try:
        async with asyncio.timeout(tools.config.mcp_seconds):
            await tools.add(name, await _client(stack, server, backend))
    except ConfigError:
        raise
    except Exception as error:
        reason = f"the MCP server {name} does not answer: {type(error).__name__}: {error}"
        raise EpisodeFailure(WORKER, reason) from error


async def _client(stack: AsyncExitStack, server: str, backend: SandboxBackend | None) -> Client:
    from mcp import Client

    if backend is None or server.startswith(("http://", "https://")):
        return await stack.enter_async_context(Client(server))
    sandbox = await backend.open()
    stack.push_async_callback(sandbox.stop)
    process = await sandbox.start(Command(tuple(shlex.split(server))), LONGEST_LINE)
    return await stack.enter_async_context(Client(streams_of(process)))


def has_programs(given: Mapping[str, str]) -> bool:
    """Returns whether a program is among the servers, which needs a sandbox."""
    return any(not server.startswith(("http://", "https://")) for server in given.values())
