"""What the router does before an engine is asked: rates, ids and addresses, and its own lines in the log."""

import asyncio
import json
import logging
from dataclasses import replace

import httpx
import pytest

from arcforge_serving.server.gate.auth import Keys
from arcforge_serving.server.gate.logs import JsonLines
from arcforge_serving.server.gate.rates import LIMITED, Rates
from support.fake_fleet import ADMIN, DIE, USER, reply, run_fakes, stream

ASK = {"prompt": "one", "max_tokens": 3}
ONE, DONE = b'data: {"a": 1}\n\n', b"data: [DONE]\n\n"


def limited(found, rates, **fields):
    """Gives a router rates; returns them."""
    state = found.app.state.router
    state.guard = replace(state.guard, rates=rates, **fields)
    return rates


def ok(*_):
    return reply({"ok": True})


@pytest.mark.parametrize("path", LIMITED)
def test_a_key_has_one_rate_whatever_engine_answers(path):
    async def work(found):
        limited(found, Rates(requests=2))
        replies = [await found.http.post(path, json=ASK) for _ in range(3)]
        assert [got.status_code for got in replies] == [200, 200, 429]
        assert {got.headers["x-arcforge-engine"] for got in replies[:2]} == {"0", "1"}
        assert 1 <= int(replies[2].headers["retry-after"]) <= 30
        error = replies[2].json()["error"]
        assert error["type"] == "rate_limit_error" and "requests_per_minute=2" in error["message"]
        assert error.get("code") == (None if path == "/v1/messages" else "rate_limit_exceeded")
        assert found.counts.limited == 1 and len(found.seen) == 2
        for other in ("/tokenize", "/v1/messages/count_tokens"):
            assert (await found.http.post(other, json=ASK)).status_code == 200
        assert (await found.http.get("/v1/models")).status_code == 200
        for _ in range(3):
            assert (await found.http.post(path, json=ASK, headers=ADMIN)).status_code == 200
        assert "arcforge:router_limited_total 1.0" in (await found.http.get("/metrics")).text

    run_fakes(lambda number, method, path, body: metrics_or_ok(path), work)


def metrics_or_ok(path):
    page = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: 0\r\n\r\n"
    return [page] if path == "/metrics" else reply({})


def test_a_request_that_is_tried_again_counts_once():
    async def work(found):
        limited(found, Rates(requests=1))
        assert (await found.http.post("/v1/completions", json=ASK)).status_code == 200
        assert len(found.seen) == 2

    run_fakes(lambda number, *_: reply({}) if number else [DIE], work)


def test_who_is_over_the_rate_is_told_before_the_body_is_read():
    async def work(found):
        limited(found, Rates(requests=1))
        assert (await found.http.post("/v1/completions", json=ASK)).status_code == 200
        read = []

        async def body():
            read.append(1)
            yield b"{}"

        assert (await found.http.post("/v1/completions", content=body())).status_code == 429
        assert not read

    run_fakes(ok, work)


def test_tokens_that_engines_report_are_owed():
    async def work(found):
        rates = limited(found, Rates(tokens=60))
        assert (await found.http.post("/v1/completions", json=ASK)).status_code == 200
        (holder,) = rates._buckets
        rates.spend(holder, 100)  # what an engine's process says
        got = await found.http.post("/v1/completions", json=ASK)
        assert got.status_code == 429 and "tokens_per_minute=60" in got.text
        assert 38 <= int(got.headers["retry-after"]) <= 40

    run_fakes(ok, work)


def test_foreign_names_and_pages_reach_no_engine():
    async def work(found):
        for path in ("/v1/completions", "/v1/rl/pause", "/v1/router/engines/0/drain"):
            assert (await found.http.post(path, json=ASK, headers={"host": "evil.example"})).status_code == 421
            assert (
                await found.http.post(path, json=ASK, headers={"origin": "https://evil.example"})
            ).status_code == 403
        assert not found.seen
        own = {"host": "localhost:8000", "origin": "http://localhost:8000"}
        assert (await found.http.post("/v1/completions", json=ASK, headers=own)).status_code == 200
        assert "origin" not in found.seen[-1][3]  # engines have other names than the router

    run_fakes(ok, work)


def test_without_keys_each_address_has_a_rate():
    async def work(found):
        limited(found, Rates(requests=1), keys=Keys())
        for address, statuses in (("10.0.0.1", [200, 429]), ("10.0.0.2", [200, 429])):
            transport = httpx.ASGITransport(found.app, client=(address, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                assert [(await http.post("/v1/completions", json=ASK)).status_code for _ in range(2)] == statuses

    run_fakes(ok, work)


def test_engines_are_told_the_clients_address_and_the_requests_id():
    """Whatever a client says of its address; the id is its own, or one for all attempts."""

    async def work(found):
        lie = {"x-forwarded-for": "6.6.6.6", "x-request-id": "no good id"}
        got = await found.http.post("/v1/completions", json=ASK, headers=lie)
        (_, _, _, first, _), (_, _, _, second, _) = found.seen
        assert first["x-forwarded-for"] == second["x-forwarded-for"] == "127.0.0.1"
        assert first["x-request-id"] == second["x-request-id"] == got.headers["x-request-id"] != lie["x-request-id"]
        got = await found.http.get("/v1/models", headers={"x-request-id": "mine"})
        assert found.seen[-1][3]["x-request-id"] == got.headers["x-request-id"] == "mine"

    run_fakes(lambda number, *_: reply({}) if number else [DIE], work)


def test_what_the_router_says_itself_has_an_id_too():
    async def work(found):
        for path, headers in (("/health", {}), ("/v1/models/x", {"authorization": "Bearer wrong-key"})):
            got = await found.http.post(path, headers={"x-request-id": "mine", **headers})
            assert got.headers["x-request-id"] == "mine" and got.status_code in (200, 401, 405)

    run_fakes(ok, work)


@pytest.mark.parametrize(
    ("status", "kind", "headers"),
    [(401, "authentication_error", {"authorization": "Bearer wrong-key"}), (413, "request_too_large", {})],
)
def test_refusals_are_in_the_words_of_the_dialect(status, kind, headers):
    async def work(found):
        got = await found.http.post("/v1/messages", content=b"x" * (2**20 + 1), headers=headers)
        assert got.status_code == status
        assert got.json()["type"] == "error" and got.json()["error"]["type"] == kind
        assert got.headers["request-id"] == got.headers["x-request-id"]

    run_fakes(ok, work)


def test_the_log_has_what_no_engine_has_answered_and_nothing_twice(caplog):
    caplog.set_level(logging.INFO, "arcforge.requests")

    async def work(found):
        await found.http.post("/v1/completions", json=ASK)  # an engine's log has it
        await found.http.post("/v1/completions", json=ASK, headers={"authorization": "Bearer wrong-key"})
        limited(found, Rates(requests=1))
        await found.http.post("/v1/messages", json=ASK)
        await found.http.post("/v1/messages", json=ASK)
        await found.http.post("/v1/responses", json={"previous_response_id": "resp_1"}, headers=ADMIN)
        await asyncio.sleep(0)
        await found.http.post("/v1/completions", json={**ASK, "stream": True}, headers=ADMIN)

    run_fakes(lambda number, m, path, body: stream(ONE, DIE) if b"stream" in body else reply({}), work)
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert [(line["path"], line["status"], line["error"]) for line in lines] == [
        ("/v1/completions", 401, "invalid_request_error"),
        ("/v1/messages", 429, "rate_limit_exceeded"),
        ("/v1/responses", 404, "previous_response_not_found"),
        ("/v1/completions", 200, "server_error"),
    ]
    assert [bool(line.get("key")) for line in lines] == [False, True, True, True]
    assert USER["authorization"] not in caplog.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/rl/update_weights", "/v1/rl/generate"])
def test_a_client_that_leaves_amid_its_body_is_no_error(path):
    """A killed trainer, for example: its request ends with 499, and nothing is raised or passed on."""

    async def work(found):
        parts = [{"type": "http.request", "body": b'{"pro', "more_body": True}, {"type": "http.disconnect"}]
        sent = []

        async def receive():
            return parts.pop(0)

        async def send(message):
            sent.append(message)

        headers = [(name.lower().encode(), value.encode()) for name, value in {**ADMIN, "host": "127.0.0.1"}.items()]
        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http",
            "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0"}, "state": {},
        }  # fmt: skip
        before = len(found.seen)
        await found.app(scope, receive, send)
        assert sent[0]["status"] == 499 and len(found.seen) == before

    run_fakes(ok, work)
