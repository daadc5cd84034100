"""The real server of uvicorn, with clients that send or read too little."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.connections import connection_options, descriptors
from arcforge_serving.server.run import listen

CHUNK = b"x" * 4096
sent: list[int] = []
clients: list[socket.socket] = []


def small_app() -> FastAPI:
    app = FastAPI()

    @app.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def chunks() -> AsyncIterator[bytes]:
            sent.append(0)
            try:
                while True:
                    sent[-1] += len(CHUNK)
                    yield CHUNK
                    await asyncio.sleep(0)
            finally:
                sent.append(-1)

        return StreamingResponse(chunks())

    return app


@contextmanager
def live(**limits: Any) -> Iterator[tuple[str, int]]:
    """Runs the server; yields its address."""
    config = ServeConfig(PagedEngineConfig(), **limits)
    with listen("127.0.0.1", 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        server = uvicorn.Server(
            uvicorn.Config(small_app(), log_level="critical", timeout_graceful_shutdown=1, **connection_options(config))
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            while clients:
                clients.pop().close()
            server.should_exit = True
            thread.join(10)
    assert not thread.is_alive()


def answers(address: tuple[str, int], size: int = 3) -> bool:
    url = f"http://{address[0]}:{address[1]}/echo"
    return bool(httpx.post(url, content=b"x" * size, timeout=5).json() == size)


def connect(address: tuple[str, int], request: bytes = b"", receive: int | None = None) -> socket.socket:
    client = socket.socket()
    clients.append(client)
    if receive is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    client.connect(address)
    client.sendall(request)
    client.settimeout(5)
    return client


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
        assert time.monotonic() - start < 5


def test_the_longest_idle_connection_makes_room() -> None:
    with live(max_connections=4) as address:
        quiet = [connect(address) for _ in range(4)]
        time.sleep(0.1)
        assert answers(address)  # the fifth
        assert closed(quiet[0])
        for client in quiet[1:]:
            client.sendall(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nxx")  # it works on it now
        time.sleep(0.1)
        busy = connect(address, b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nxx")
        time.sleep(0.1)
        refused = connect(address)
        assert closed(refused)  # all four have a request: nobody is idle
        for client in [*quiet[1:], busy]:
            client.sendall(b"xxx")
            assert status(client) == 200


@pytest.mark.parametrize("dripped", [False, True])
def test_headers_come_in_time(dripped: bool) -> None:
    with live(header_seconds=0.3, keep_alive_seconds=60) as address:
        silent = connect(address)
        kept = connect(address, b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        assert status(kept) == 200
        time.sleep(0.5)
        assert closed(silent)
        kept.sendall(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")  # idle, and still open
        assert status(kept) == 200
        start = time.monotonic()
        kept.sendall(b"POST /echo HTTP/1.1\r\n")
        with pytest.raises(OSError):
            while dripped:
                kept.sendall(b"a: b\r\n")
                time.sleep(0.05)
            assert closed(kept)
            raise OSError
        assert 0.2 < time.monotonic() - start < 3


def test_a_body_in_progress_is_not_idle() -> None:
    with live(header_seconds=0.3) as address:
        client = connect(address, b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nx")
        time.sleep(0.6)
        client.sendall(b"xx")
        assert status(client) == 200


def test_a_client_that_does_not_read_holds_little_and_not_for_ever() -> None:
    sent.clear()
    with live(read_seconds=1.0) as address:
        reader = connect(address, b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n", receive=4096)
        time.sleep(0.5)
        assert 0 < sent[0] < 2**20  # what the kernel and one write buffer take
        held = sent[0]
        assert answers(address)
        time.sleep(0.2)
        assert sent == [held]
        deadline = time.monotonic() + 5
        while len(sent) == 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sent == [held, -1]  # the generator was closed
        assert closed(reader)


def test_a_client_that_reads_slowly_is_served_on() -> None:
    sent.clear()
    with live(read_seconds=0.5) as address:
        reader = connect(address, b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n", receive=4096)
        for _ in range(10):
            time.sleep(0.1)
            for _ in range(30):
                assert reader.recv(8192)
        assert sent[0] > 30 * 4096
        assert len(sent) == 1


def test_a_body_larger_than_one_read() -> None:
    with live() as address:
        assert answers(address, 3_000_000)
