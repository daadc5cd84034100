import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.testclient import TestClient

from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.gate.auth import ADMIN_KEYS, USER_KEYS, Level, load_keys
from arcforge_serving.server.gate.guard import Guard, GuardedRoute, Limits, declare
from arcforge_serving.server.shared.errors import add_error_handlers
from support.clocks import MovedClock

USER, ADMIN = {"Authorization": "Bearer user-key-1"}, {"Authorization": "Bearer admin-key"}


def app(**limits: Any) -> FastAPI:
    """One route of each kind; the last one is of a router that is included."""
    keys = load_keys(ServeConfig(PagedEngineConfig()), {USER_KEYS: "user-key-1,user-key-2", ADMIN_KEYS: "admin-key"})
    app = FastAPI()
    app.router.route_class = GuardedRoute
    app.state.server = SimpleNamespace(guard=Guard(keys, Limits(**limits)))
    add_error_handlers(app)

    @app.get("/open")
    @declare(Level.OPEN)
    async def open_() -> str:
        return "open"

    @app.post("/undeclared")
    async def undeclared(request: Request, body: dict[str, int]) -> str:
        return str(request.state.owner)

    inner = APIRouter(prefix="/inner", route_class=GuardedRoute)

    @inner.post("/admin")
    @declare(Level.ADMIN)
    async def admin(body: dict[str, int]) -> str:
        return "admin"

    @inner.post("/stream")
    @declare(Level.ADMIN, streams=True)
    async def stream(request: Request) -> int:
        return sum([len(part) async for part in request.stream()])

    app.include_router(inner)
    return app


@pytest.fixture
def client() -> TestClient:
    return TestClient(app(body_bytes=1000))


def test_routes_want_what_they_declare(client: TestClient) -> None:
    assert client.get("/open").text == '"open"'
    for path, statuses in (("/undeclared", (401, 200, 200)), ("/inner/admin", (401, 403, 200))):
        assert tuple(client.post(path, json={}, headers=h).status_code for h in ({}, USER, ADMIN)) == statuses
    assert client.post("/undeclared", json={}).headers["www-authenticate"] == "Bearer"
    assert set(client.post("/undeclared", json={}).json()["error"]) == {"message", "type", "param", "code"}


def test_owners_reach_the_route(client: TestClient) -> None:
    other = {"Authorization": "Bearer user-key-2"}
    assert len({client.post("/undeclared", json={}, headers=h).text for h in (USER, other, ADMIN)}) == 3


def test_a_body_is_not_even_parsed_without_a_key(client: TestClient) -> None:
    for content in (b"{", b"x" * 5000):
        response = client.post("/undeclared", content=content, headers={"content-type": "application/json"})
        assert response.status_code == 401


@pytest.mark.parametrize("size", [990, 1000, 1001, 5000])
@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_are_as_large_as_allowed(client: TestClient, size: int, chunked: bool) -> None:
    text = b'{"a": 1' + b" " * (size - 8) + b"}"
    content: Any = iter([text[:600], text[600:]]) if chunked else text
    response = client.post("/undeclared", content=content, headers={**USER, "content-type": "application/json"})
    assert response.status_code == (200 if size <= 1000 else 413), response.text
    if size > 1000:
        assert "the 1000 bytes" in response.json()["error"]["message"]
        assert response.headers["connection"] == "close"


def test_a_body_that_is_streamed_counts_itself(client: TestClient) -> None:
    assert client.post("/inner/stream", content=b"x" * 5000, headers=ADMIN).json() == 5000


async def post(target: FastAPI, path: str, parts: AsyncIterator[bytes]) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(target), base_url="http://test") as client:
        headers = {**ADMIN, "content-type": "application/json"}
        return await client.post(path, content=parts, headers=headers)


@pytest.mark.parametrize(("path", "pauses", "status"), [
    ("/undeclared", [0, 0], 200), ("/undeclared", [150] * 4, 408), ("/undeclared", [500], 408),
    ("/inner/stream", [150] * 4, 200), ("/inner/stream", [500], 408),
])  # fmt: skip
def test_bodies_come_in_time(path: str, pauses: list[int], status: int) -> None:
    async def parts(clock: MovedClock) -> AsyncIterator[bytes]:
        yield b'{"a": 1'
        for pause in pauses:
            clock.move(pause)
            for _ in range(5):  # a limit that is reached now takes effect within these rounds of the loop
                await asyncio.sleep(0)
            yield b" "
        yield b"}"

    async def sent() -> httpx.Response:
        return await post(app(body_seconds=400), path, parts(MovedClock()))

    response = asyncio.run(sent())
    assert response.status_code == status, response.text


@pytest.mark.parametrize("length", ["-1", "9" * 40, "1e9", "٣", ""])
def test_lengths_that_lie(client: TestClient, length: str) -> None:
    headers = {**USER, "content-type": "application/json", "content-length": length.encode()}
    response = client.post("/undeclared", content=b"{}", headers=headers)  # type: ignore[arg-type]
    assert response.status_code == (413 if length.startswith("9") else 200)
