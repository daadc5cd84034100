"""Who may control an engine, and how it stands still, aborts and shares turns."""

import json
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.shared.state import ServerState
from serving.server.admin.conftest import ADMIN, PROMPT, USER, complete, control, in_background, slow_down, upload
from support.waiting import wait_until

ROUTES = [
    ("GET", "status", None),
    ("POST", "pause", {"mode": "keep"}),
    ("POST", "resume", None),
    ("POST", "flush", None),
    ("POST", "abort", {"all": True}),
    ("POST", "generate", {"prompt": [1], "max_new_tokens": 1}),
    ("POST", "update_weights", {"path": "new"}),
    ("POST", "update_weights/tensors", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_every_route_wants_an_admin_key(
    client: TestClient, server: ServerState, method: str, path: str, body: dict[str, Any] | None
) -> None:
    def status(header: str) -> int:
        response = client.request(method, f"/v1/rl/{path}", json=body, headers={"Authorization": header})
        return response.status_code

    assert [status(h) for h in ("", "Bearer wrong-key", USER["Authorization"])] == [401, 401, 403]
    assert status(ADMIN["Authorization"]) == (400 if path.endswith("tensors") else 200)
    server.guard = Guard()
    response = client.request(method, f"/v1/rl/{path}", json=body)
    assert response.status_code == 403
    assert "admin_key_file" in response.json()["error"]["message"]


def test_these_are_all_routes(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {path for path in paths if path.startswith("/v1/rl")} == {f"/v1/rl/{path}" for _, path, _ in ROUTES}


def test_every_other_route_wants_a_key_too(client: TestClient) -> None:
    """Whoever adds a route and forgets to declare it gets one for users."""
    paths = client.get("/openapi.json").json()["paths"]
    client.headers["Authorization"] = ""
    for path, methods in paths.items():
        for method in methods:
            status = client.request(method, path.replace("{name}", "small"), json={}).status_code
            assert status == (200 if path in ("/health", "/ready", "/dashboard") else 401), path
    assert len(paths) > 12


@pytest.mark.parametrize(("mode", "reason"), [("abort", "abort"), ("wait", "length"), ("keep", "length")])
def test_pauses(
    client: TestClient, server: ServerState, monkeypatch: pytest.MonkeyPatch, mode: str, reason: str
) -> None:
    slow_down(server, monkeypatch)
    running, results = in_background(lambda: complete(client, count=30))
    wait_until(lambda: server.engine.stats().running == 1)
    assert control(client, "pause", mode=mode)["paused"] is True
    if mode != "keep":
        running.join(60)
    late, late_results = in_background(lambda: complete(client, count=2))
    time.sleep(0.1)
    stats = client.get("/v1/rl/status").json()
    assert (stats["paused"], stats["running"], stats["operation"]) == (True, mode == "keep", None)
    assert not late_results
    assert control(client, "resume")["paused"] is False
    late.join(60)
    running.join(60)
    assert results[0]["finish_reason"] == reason
    assert late_results[0]["finish_reason"] == "length"
    assert 'arcforge:paused{model_name="small"} 0.0' in client.get("/metrics").text


def test_what_a_pause_waits_for_can_be_aborted(
    client: TestClient, server: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(server, monkeypatch, 0.1)
    running, results = in_background(lambda: complete(client, count=90))
    wait_until(lambda: server.engine.stats().running == 1)
    pausing, paused = in_background(lambda: control(client, "pause", mode="wait"))
    wait_until(lambda: client.get("/v1/rl/status").json()["operation"] == "pause wait")
    for route, body in (
        ("resume", {}),
        ("pause", {"mode": "keep"}),
        ("update_weights", {"path": "new"}),
        ("flush", {}),
    ):
        assert "pause wait is in progress" in control(client, route, 409, **body)["error"]["message"]
    control(client, "abort", all=True)
    for thread in (running, pausing):
        thread.join(60)
        assert not thread.is_alive()
    assert results[0]["finish_reason"] == "abort"
    assert paused[0]["paused"] is True


def test_one_request_is_aborted_by_its_id(
    client: TestClient, server: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(server, monkeypatch)
    body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "n": 2}

    def ask(name: str) -> Any:
        return client.post("/v1/completions", json=body, headers={**USER, "X-Request-Id": name}).json()

    asked = {name: in_background(lambda name=name: ask(name)) for name in ("mine", "other")}
    wait_until(lambda: {"mine", "other"} <= set(server.open))
    control(client, "abort", request_id="mine")
    asked["mine"][0].join(60)
    assert [c["finish_reason"] for c in asked["mine"][1][0]["choices"]] == ["abort"] * 2
    assert len(server.open) == 2
    (generated,) = set(server.open) - {"other"}
    control(client, "abort", request_id=generated)
    asked["other"][0].join(60)
    assert asked["other"][1][0]["id"] == generated
    assert [c["finish_reason"] for c in asked["other"][1][0]["choices"]] == ["abort"] * 2
    assert not server.open
    assert "no request 'mine'" in control(client, "abort", 404, request_id="mine")["error"]["message"]
    server.engine.check()


def test_requests_that_are_none(client: TestClient) -> None:
    for body in ({}, {"all": True, "request_id": "a"}, {"all": False}, {"request_id": 5}):
        control(client, "abort", 400, **body)
    control(client, "pause", 400, mode="now")
    control(client, "pause", 400, modus="keep")
    for body in ({}, {"path": ""}, {"path": "new", "version": 0}, {"path": "new", "checksum": "abc"}):
        control(client, "update_weights", 400, **body)
    upload(client, b"", 400, version="x")
    upload(client, b"", 400, checksum="0" * 63)


def test_holders_of_a_key_share_one_turn(
    client: TestClient, server: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners: list[str] = []
    submit = server.engine.submit

    def watched(*args: Any, owner: str = "", **options: Any) -> Any:
        owners.append(owner)
        return submit(*args, owner=owner, **options)

    monkeypatch.setattr(server.engine, "submit", watched)
    other = {"Authorization": "Bearer other-key"}
    for headers, user in ((USER, "a"), (USER, "b"), (other, "a")):
        client.post("/v1/completions", json={"prompt": [1], "user": user}, headers=headers)
    assert owners[0] == owners[1] != owners[2]
    server.guard = Guard()
    for user in ("a", "b"):
        client.post("/v1/completions", content=json.dumps({"prompt": [1], "user": user}), headers={
            "Authorization": "", "content-type": "application/json",
        })  # fmt: skip
    assert owners[3:] == ["testclient"] * 2  # without keys an address shares one: a "user" can be made up
