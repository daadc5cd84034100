"""MCP servers of one episode: programs in a sandbox, and clients that live on the sandbox's event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from arcforge_core.contracts.chat import Tool, ToolCall
from arcforge_core.contracts.environment import EpisodeFailure
from arcforge_core.contracts.sandbox import WORKSPACE, Command, Sandbox, SandboxBackend, SandboxLimits
from arcforge_rl.office.inside import STATE
from arcforge_rl.office.services import Records
from arcforge_rl.sandbox.mcp_streams import streams_of
from arcforge_rl.sandbox.sync import shared_desk

if TYPE_CHECKING:
    from mcp import Client

LONGEST = 1 << 20
"""Bytes of a message of a server."""
SECONDS = 60.0
"""Bound of an answer; a server that takes longer is gone."""
LIMITS = SandboxLimits(cpu_seconds=600, wall_seconds=3600, processes=64)
Work = Callable[["Clients"], Awaitable[Any]]


@dataclass
class Clients:
    """The connected servers.

    Attributes:
        of: name of a server -> its client.
        tools: of all servers.
        owners: name of a tool -> its server.
    """

    of: dict[str, Client] = field(default_factory=dict)
    tools: list[Tool] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)

    async def use(self, call: ToolCall) -> str:
        """Returns the text of a call's result; that of a refused call begins with ``Error``."""
        result: Any = await self.of[self.owners[call.name]].call_tool(call.name, dict(call.arguments))
        texts = "\n".join(block.text for block in result.content if block.type == "text")
        return f"Error: {texts}" if result.is_error and not texts.startswith("Error") else texts

    async def records(self) -> dict[str, Records]:
        """Returns the records of all servers."""
        found = {}
        for name, client in self.of.items():
            result: Any = await client.read_resource(STATE, cache_mode="bypass")
            found[name] = json.loads(result.contents[0].text)
        return found


class Servers:
    """Used as ``async with Servers(records) as servers:`` on any event loop.

    Clients are entered and left by one task, as their library wants it; `do` gives it work.

    Args:
        records: name of a server -> its records.

    Raises:
        EpisodeFailure: a server does not answer.
    """

    def __init__(self, records: Mapping[str, Records]) -> None:
        self.initial = records

    async def __aenter__(self) -> Servers:
        self.tools = await shared_desk().do(self._begin)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await shared_desk().do(lambda _: self._end())

    async def use(self, call: ToolCall) -> str:
        """Calls a tool; see `Clients.use`."""
        return str(await self._ask(lambda clients: clients.use(call)))

    async def records(self) -> dict[str, Records]:
        """Returns the records of all servers."""
        found: dict[str, Records] = await self._ask(lambda clients: clients.records())
        return found

    async def _ask(self, work: Work) -> Any:
        async def asked(_: SandboxBackend) -> Any:
            result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            await self._queue.put((work, result))
            either: list[asyncio.Future[Any]] = [result, self._life]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise EpisodeFailure("environment", f"the MCP servers are gone: {self._life.exception()}")
            return result.result()

        return await shared_desk().do(asked)

    async def _begin(self, backend: SandboxBackend) -> list[Tool]:
        self._queue: asyncio.Queue[tuple[Work, asyncio.Future[Any]] | None] = asyncio.Queue()
        ready: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(backend, ready))
        either: list[asyncio.Future[Any]] = [ready, self._life]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            return ready.result()
        error = self._life.exception()
        raise error if isinstance(error, EpisodeFailure) else EpisodeFailure("environment", f"MCP servers: {error}")

    async def _end(self) -> None:
        await self._queue.put(None)
        await asyncio.wait([self._life])

    async def _live(self, backend: SandboxBackend, ready: asyncio.Future[list[Tool]]) -> None:
        sandbox = await backend.open(None, LIMITS)
        try:
            async with AsyncExitStack() as stack:
                clients = await self._connected(sandbox, stack)
                ready.set_result(clients.tools)
                while (asked := await self._queue.get()) is not None:
                    work, result = asked
                    try:
                        async with asyncio.timeout(SECONDS):
                            result.set_result(await work(clients))
                    except Exception as error:  # that of one request goes to its caller
                        result.set_exception(EpisodeFailure("environment", f"an MCP server: {error!r}"))
        finally:
            await sandbox.stop()

    async def _connected(self, sandbox: Sandbox, stack: AsyncExitStack) -> Clients:
        from mcp import Client

        package = resources.files("arcforge_rl.office")
        for name in ("inside.py", "services.py"):
            await sandbox.write(name, package.joinpath(name).read_bytes())
        clients = Clients()
        for name, records in self.initial.items():
            await sandbox.write(f"{name}.json", json.dumps(records).encode())
            paths = [f"{WORKSPACE}/inside.py", f"{WORKSPACE}/services.py", name, f"{WORKSPACE}/{name}.json"]
            command = Command((shared_desk().python, "-I", *paths))
            async with asyncio.timeout(SECONDS):
                client = await stack.enter_async_context(Client(streams_of(await sandbox.start(command, LONGEST))))
                listed: Any = await client.list_tools()
            clients.of[name] = client
            for tool in listed.tools:
                function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
                clients.tools.append(Tool({"type": "function", "function": function}))
                clients.owners[tool.name] = name
        return clients
