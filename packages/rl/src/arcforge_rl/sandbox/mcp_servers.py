"""MCP servers of one episode: programs in a sandbox, and clients that live on the sandbox's event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arcforge_core.contracts.chat import Tool, ToolCall
from arcforge_core.contracts.environment import EpisodeFailure
from arcforge_core.contracts.sandbox import WORKSPACE, Command, Sandbox, SandboxBackend, SandboxLimits
from arcforge_core.errors import ConfigError
from arcforge_rl.sandbox.mcp_program import STATE
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
Records = dict[str, Any]


@dataclass(frozen=True)
class Service:
    """A service that a server offers.

    Attributes:
        source: plain Python with ``SERVICES``, see `mcp_program`.
        name: in it.
        records: that it begins with.
    """

    source: str
    name: str
    records: Records


def check_client(name: str) -> None:
    """Checks that the package of the client is there.

    Raises:
        ConfigError: it is not.
    """
    if find_spec("mcp") is None:
        raise ConfigError("environment", name, "needs the package mcp: pip install 'arcforge-rl[mcp]'")


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
    """The world of an episode, used as ``async with Servers(services) as servers:`` on any event loop.

    Its tools are one object: `tools` and `use` are what `converse` takes, and any MCP client sees the same ones.
    Clients are entered and left by one task, as their library wants it; `do` gives it work.

    Args:
        services: name of a server -> what it offers; no two have a tool of the same name.
        layers: that the sandbox shows, see `SandboxBackend.open`.
        limits: of the sandbox.
        python: the interpreter inside; empty: that of the desk.

    Attributes:
        tools: of all servers.

    Raises:
        EpisodeFailure: a server does not answer.
    """

    def __init__(
        self,
        services: Mapping[str, Service],
        layers: Sequence[tuple[Path, str]] = (),
        limits: SandboxLimits = LIMITS,
        python: str = "",
    ) -> None:
        self.services, self.layers, self.limits, self.python = services, layers, limits, python
        self.tools: list[Tool] = []
        self._said = bytearray()

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
                raise self._failure("the MCP servers are gone", self._life.exception())
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
        raise error if isinstance(error, EpisodeFailure) else self._failure("an MCP server did not start", error)

    def _failure(self, what: str, error: BaseException | None) -> EpisodeFailure:
        lines = self._said.decode(errors="replace").strip().splitlines()
        return EpisodeFailure("environment", f"{what}: {error!r}{f'; it said: {lines[-1]}' if lines else ''}")

    async def _end(self) -> None:
        await self._queue.put(None)
        await asyncio.wait([self._life])

    async def _live(self, backend: SandboxBackend, ready: asyncio.Future[list[Tool]]) -> None:
        sandbox = await backend.open(None, self.limits, layers=self.layers)
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
                        result.set_exception(self._failure("an MCP server", error))
        finally:
            await sandbox.stop()

    async def _connected(self, sandbox: Sandbox, stack: AsyncExitStack) -> Clients:
        from mcp import Client

        program = resources.files("arcforge_rl.sandbox").joinpath("mcp_program.py").read_bytes()
        await sandbox.write("mcp_program.py", program)
        clients = Clients()
        for name, service in self.services.items():
            await sandbox.write(f"{name}.py", service.source.encode())
            await sandbox.write(f"{name}.json", json.dumps(service.records).encode())
            paths = [f"{WORKSPACE}/{path}" for path in ("mcp_program.py", f"{name}.py", f"{name}.json")]
            command = Command((self.python or shared_desk().python, "-I", *paths[:2], service.name, paths[2]))
            async with asyncio.timeout(SECONDS):
                process = await sandbox.start(command, LONGEST)
                client = await stack.enter_async_context(Client(streams_of(process, self._said)))
                listed: Any = await client.list_tools()
            clients.of[name] = client
            for tool in listed.tools:
                function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
                clients.tools.append(Tool({"type": "function", "function": function}))
                clients.owners[tool.name] = name
        return clients
