"""The real server of uvicorn, with clients that send or read too little."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any, Literal

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.gate.connections import connection_options, descriptors
from arcforge_serving.server.serve import listen
from support.clocks import MovedClock

CHUNK = b"x" * 4096
PATIENCE = 60.0
"""Seconds until something that should come counts as never: a busy machine may be slow, and no test waits for it."""
sent: list[int] = []
times: list[float] = []
clients: list[socket.socket] = []
servers: list[uvicorn.Server] = []
loops: list[asyncio.AbstractEventLoop] = []


def small_app() -> FastAPI:
    app = FastAPI()

    @app.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        loops[:] = [asyncio.get_running_loop()]

        async def chunks() -> AsyncIterator[bytes]:
            sent.append(0)
            try:
                while True:
                    sent[-1] += len(CHUNK)
                    times.append(time.monotonic())
                    yield CHUNK
                    await asyncio.sleep(0)
            finally:
                times.append(time.monotonic())
                sent.append(-1)

        return StreamingResponse(chunks())

    return app


@contextmanager
def live(loop: Literal["auto", "asyncio"] = "auto", **limits: Any) -> Iterator[tuple[str, int]]:
    """Runs the server on a kind of event loop; yields its address."""
    config = ServeConfig(PagedEngineConfig(), **limits)
    with listen("127.0.0.1", 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        options = {"log_level": "critical", "timeout_graceful_shutdown": 1, **connection_options(config)}
        server = uvicorn.Server(uvicorn.Config(small_app(), loop=loop, **options))
        servers[:] = [server]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            while clients:
                clients.pop().close()
            server.should_exit = True
            thread.join(PATIENCE)
    assert not thread.is_alive()


def answers(address: tuple[str, int], size: int = 3) -> bool:
    url = f"http://{address[0]}:{address[1]}/echo"
    return bool(httpx.post(url, content=b"x" * size, timeout=PATIENCE).json() == size)


def connect(address: tuple[str, int], request: bytes = b"", receive: int | None = None) -> socket.socket:
    client = socket.socket()
    clients.append(client)
    if receive is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    client.connect(address)
    client.sendall(request)
    client.settimeout(PATIENCE)
    return client


def connections() -> tuple[int, int]:
    """Returns how many connections the server has, and how many of them are idle; none before it has begun."""
    (server,) = servers
    if not server.started:
        return 0, 0
    return len(server.server_state.connections), len(server.config.http_protocol_class.idle)  # type: ignore[union-attr]


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that the server's thread does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, connections()
        time.sleep(0.01)


def status(client: socket.socket) -> int:
    """Reads a reply."""
    response = HTTPResponse(client)
    response.begin()
    response.read()
    return response.status


def closed(client: socket.socket) -> bool:
    """Waits for the end of the connection."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.slow(reason="a thousand connections")
def test_a_thousand_idle_connections_stop_nobody() -> None:
    if descriptors() < 4000:
        pytest.skip("this process may not open so many files")
    with live() as address:
        for number in range(1000):
            connect(address, b"POST /echo HTTP/1.1\r\n" if number % 2 else b"")
        start = time.monotonic()
        assert all(answers(address) for _ in range(20))
        assert time.monotonic() - start < PATIENCE


def test_the_longest_idle_connection_makes_room() -> None:
    with live(max_connections=4, header_seconds=600.0) as address:
        quiet = [connect(address) for _ in range(4)]
        until(lambda: connections() == (4, 4))
        assert answers(address)  # the fifth
        assert closed(quiet[0])
        until(lambda: connections() == (3, 3))
        for client in quiet[1:]:
            client.sendall(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nxx")  # it works on it now
        until(lambda: connections() == (3, 0))
        busy = connect(address, b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nxx")
        until(lambda: connections() == (4, 0))
        refused = connect(address)
        assert closed(refused)  # all four have a request: nobody is idle
        for client in [*quiet[1:], busy]:
            client.sendall(b"xxx")
            assert status(client) == 200


@pytest.mark.parametrize("dripped", [False, True])
def test_headers_come_in_time(dripped: bool) -> None:
    with live(header_seconds=0.8, keep_alive_seconds=600) as address:
        silent = connect(address)
        kept = connect(address, b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        assert status(kept) == 200
        time.sleep(1.0)
        assert closed(silent)
        kept.sendall(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")  # idle, and still open
        assert status(kept) == 200
        start = time.monotonic()
        kept.sendall(b"POST /echo HTTP/1.1\r\n")
        with pytest.raises(OSError):
            while dripped and time.monotonic() - start < PATIENCE:
                kept.sendall(b"a: b\r\n")
                time.sleep(0.05)
            assert closed(kept)
            raise OSError
        assert 0.7 < time.monotonic() - start < PATIENCE


def test_a_body_in_progress_is_not_idle() -> None:
    with live(header_seconds=0.8) as address:
        client = connect(address, b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nx")
        time.sleep(1.2)
        client.sendall(b"xx")
        assert status(client) == 200


def test_a_client_that_does_not_read_holds_little_and_not_for_ever() -> None:
    """Times are the server's own, between its last chunk and the end: whatever holds a machine up makes them longer."""
    sent.clear()
    times.clear()
    with live(read_seconds=1.0) as address:
        reader = connect(address, b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n", receive=4096)
        until(lambda: bool(sent) and sent[0] > 0)
        assert answers(address)
        until(lambda: len(sent) == 2 or sent[0] >= 2**20)
        assert sent[0] < 2**20  # what the kernel and one write buffer take
        assert sent[1:] == [-1]  # the generator was closed
        assert times[-1] - times[-2] > 0.9
        assert closed(reader)


def test_a_client_that_reads_slowly_is_served_on() -> None:
    """For longer than one that reads nothing would be. The server's clock moves with its reads."""
    sent.clear()
    with live("asyncio", read_seconds=2000) as address:
        reader = connect(address, b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n", receive=4096)
        until(lambda: bool(sent) and sent[0] > 0)
        clock = MovedClock(*loops)
        for _ in range(30):
            clock.move(100)
            for _ in range(30):
                assert reader.recv(8192)
        assert sent[0] > 30 * 4096
        assert len(sent) == 1


HEAD = "POST /echo HTTP/1.1\r\nHost: a\r\n"
NEXT = f"{HEAD}Connection: close\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("request_", [
    f"{HEAD}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{NEXT}",
    f"{HEAD}transfer-encoding: CHUNKED\r\ncontent-length: 0\r\n\r\n0\r\n\r\n{NEXT}",
    f"{HEAD}Transfer-Encoding:\r\n chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n{NEXT}",
    "POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
    f"{HEAD}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd{NEXT}",
    f"{HEAD}Content-Length: 4, 5\r\n\r\nabcd{NEXT}",
    f"{HEAD}Content-Length: +4\r\n\r\nabcd{NEXT}",
    f"{HEAD}Content-Length: 0x4\r\n\r\nabcd{NEXT}",
    f"{HEAD}Content-Length: -1\r\n\r\n{NEXT}",
    f"{HEAD}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{NEXT}",
    f"{HEAD}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n{NEXT}",
    f"{HEAD}Transfer-Encoding: identity\r\n\r\n0\r\n\r\n{NEXT}",
    f"{HEAD}Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n{NEXT}",
    f"{HEAD}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{NEXT}",
    f"{HEAD}X: {'x' * 17_000}\r\n\r\n{NEXT}",
], ids=range(15))  # fmt: skip
def test_requests_whose_end_is_in_doubt_close_the_connection(request_: str) -> None:
    """Whatever follows is not taken for a request, which a proxy in front may have taken for a body."""
    with live(header_seconds=5.0) as address:
        client = connect(address, request_.encode())
        response = client.makefile("rb").read()
        assert response.startswith(b"HTTP/1.1 400 ") and b"connection: close" in response.lower(), response[:200]
        assert response.count(b"HTTP/1.1") == 1


def test_chunked_bodies_and_equal_lengths_are_fine() -> None:
    with live() as address:
        body = "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\n"
        assert status(connect(address, (HEAD + body).encode())) == 200
        twice = "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"
        assert status(connect(address, (HEAD + twice).encode())) == 200


def test_a_body_larger_than_one_read() -> None:
    with live() as address:
        assert answers(address, 3_000_000)
