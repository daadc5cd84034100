"""For tests: engines that do what a test says, on Unix sockets of its own process."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from arcforge_serving.configs import PagedEngineConfig, RouterConfig, ServeConfig
from arcforge_serving.router.app import create_router
from arcforge_serving.router.fleet import Fleet
from arcforge_serving.router.policies import build_policy
from arcforge_serving.router.process import EngineError
from arcforge_serving.router.relay import Counts
from arcforge_serving.server.gate.auth import ADMIN_KEYS, USER_KEYS
from arcforge_serving.server.gate.guard import Guard

T = TypeVar("T")
USER, ADMIN = {"authorization": "Bearer users-key"}, {"authorization": "Bearer admin-key"}
DIE = b""
"""In an answer: the process ends here."""
Answer = Callable[[int, str, str, bytes], Any]
"""(engine, method, path, body) -> parts of what it says, which it may have to wait for."""


def reply(body: Any, status: int = 200) -> list[bytes]:
    """Returns a JSON reply as bytes of HTTP."""
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return [head.encode() + content]


def stream(*parts: bytes) -> list[bytes]:
    """Returns a stream as bytes of HTTP, in chunks; with `DIE` it has no end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = [part and b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
    return [head, *chunks, *([] if DIE in parts else [b"0\r\n\r\n"])]


class FakeProcess:
    """One life of an engine; a `Process`.

    Args:
        number: of the engine.
        socket: where it listens.
        answer: what it says, but for health.
        seen: gets (engine, method, path, headers, body) of what it is asked.

    Attributes:
        starts: whether it can be started.
        hangs: whether it says nothing about its health.
        dead: whether its life is over.
    """

    def __init__(self, number: int, socket: Path, answer: Answer, seen: list[Any]) -> None:
        self.number, self.socket, self.upload_bytes = number, str(socket), 1000
        self.life, self.key = socket.name, f"key-of-{socket.name}"
        self.starts, self.hangs = True, False
        self._answer, self._seen = answer, seen
        self._end = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def dead(self) -> bool:
        """Whether its life is over."""
        return self._end.is_set()

    async def start(self) -> None:
        """Listens."""
        if not self.starts:
            raise EngineError("it was told not to")
        self._server = await asyncio.start_unix_server(self._serve, self.socket)

    async def ended(self) -> None:
        """Waits for `kill`."""
        await self._end.wait()

    def stop(self) -> None:
        """Ends it."""
        self.kill()

    def kill(self) -> None:
        """Ends it: what is unsent is lost."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._end.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                await self._respond(*await _request(reader), writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.transport.abort()  # the router, or this life, has ended
        finally:
            self._writers.discard(writer)

    async def _respond(
        self, method: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        answer: Iterable[bytes] | Awaitable[Iterable[bytes]] = reply({"status": "ready"})
        if path in ("/ready", "/health"):
            await asyncio.sleep(1000 * self.hangs)
        else:
            self._seen.append((self.number, method, path, headers, body))
            answer = self._answer(self.number, method, path, body)
        parts = iter(await answer if inspect.isawaitable(answer) else answer)
        try:
            for part in parts:
                if part == DIE:
                    self.kill()
                    raise ConnectionAbortedError
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.001)  # so that it is read before an end
        finally:
            if isinstance(parts, Generator):
                parts.close()


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes]:
    line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    method, path, _ = line.split()
    headers: dict[str, str] = {}
    for name, value in (each.split(": ", 1) for each in rest):
        headers[name.lower()] = ", ".join(filter(None, (headers.get(name.lower()), value)))
    if headers.get("transfer-encoding") != "chunked":
        return method, path, headers, await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return method, path, headers, body


class Fakes:
    """A router over fake engines.

    Attributes:
        fleet, app: the router's.
        lives: all processes there were.
        seen: what engines were asked.
        http: a client with a user's key.
        sent: messages of ASGI that the router has sent to it.
    """

    def __init__(self, fleet: Fleet, app: Any, lives: list[FakeProcess], seen: list[Any]) -> None:
        self.fleet, self.app, self.lives, self.seen = fleet, app, lives, seen
        self.sent: list[Any] = []

        async def noted(scope: Any, receive: Any, send: Any) -> None:
            async def sending(message: Any) -> None:
                self.sent.append(message)
                await send(message)

            await app(scope, receive, sending)

        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(noted), base_url="http://localhost", headers=USER)

    @property
    def counts(self) -> Counts:
        """What the router has counted."""
        counts: Counts = self.app.state.router.counts
        return counts

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for something.

        Raises:
            TimeoutError: it never comes.
        """
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running(answer: Answer, count: int, options: dict[str, Any]) -> AsyncIterator[Fakes]:
    """Yields a router over `count` fake engines; `options` are the router's."""
    config = RouterConfig(**{"health_seconds": 0.05, "hang_seconds": 60.0, "policy": "round_robin", **options})
    lives: list[FakeProcess] = []
    seen: list[Any] = []
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:

        def launch(number: int) -> FakeProcess:
            lives.append(FakeProcess(number, Path(folder) / f"{number}-{next(numbers)}", answer, seen))
            return lives[-1]

        fleet = Fleet(config, count, build_policy(config), launch)
        keys = {USER_KEYS: "users-key", ADMIN_KEYS: "admin-key"}
        guard = Guard.of(ServeConfig(PagedEngineConfig(), max_body_mb=1), keys)
        app = create_router(fleet, guard, Path(folder))
        await fleet.start()
        found = Fakes(fleet, app, lives, seen)
        try:
            yield found
        finally:
            await found.http.aclose()
            await fleet.stop(1.0)


def run_fakes(answer: Answer, work: Callable[[Fakes], Awaitable[T]], count: int = 2, **options: Any) -> T:
    """Runs a test; see `running`."""

    async def whole() -> T:
        async with asyncio.timeout(120), running(answer, count, options) as found:
            return await work(found)

    return asyncio.run(whole())
