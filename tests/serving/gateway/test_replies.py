"""Replies that are kept for repeated requests, or stored, are bounded over all sessions; so are recorded tokens."""

from __future__ import annotations

import asyncio
import re

import pytest
from starlette.datastructures import Headers

from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.app import gateway_app
from arcforge_serving.gateway.replies import KEPT, REPLY_BYTES, Replies
from arcforge_serving.server.shared.memories import Memories
from serving.gateway.conftest import QUIET, script
from serving.gateway.test_http import ONE, ask, more, record
from support.servers import client_of, scripted_state
from support.sessions import TOKENIZER

BODY = b"x" * 100
SIZE = REPLY_BYTES + len(BODY)


def answer(replies: Replies, body: bytes, is_whole: bool = True) -> None:
    key, reply = replies.begin(Headers(), "/v1/messages", body)
    reply.take({"type": "http.response.body", "body": BODY})
    replies.end(key, reply, is_whole)


def known(replies: Replies, *bodies: bytes) -> list[bool]:
    again = Headers({"x-stainless-retry-count": "1"})

    async def find() -> list[bool]:
        return [await replies.find(again, "/v1/messages", body) is not None for body in bodies]

    return asyncio.run(find())


def test_the_longest_unused_reply_of_all_sessions_goes_first():
    memories = Memories(3 * SIZE)
    one, other = Replies(memories), Replies(memories)
    answer(one, b"a")
    answer(one, b"b")
    answer(other, b"a")
    assert known(one, b"a") == [True]  # used now
    answer(other, b"c")
    answer(other, b"d", is_whole=False)
    assert known(one, b"a", b"b") == [True, False] and known(other, b"a", b"c", b"d") == [True, True, False]
    assert (memories.bytes, memories.forgotten) == (3 * SIZE, 1)
    one.close()
    key, reply = one.begin(Headers(), "/v1/messages", b"late")  # its session is closed meanwhile
    one.end(key, reply, True)
    assert memories.bytes == 2 * SIZE and known(one, b"late") == [False]


def test_a_session_keeps_its_last_replies_alone():
    memories = Memories()
    replies = Replies(memories)
    for number in (*range(KEPT), 0, 0, KEPT, KEPT + 1):
        answer(replies, b"%d" % number)
    assert known(replies, b"0", b"1", b"2", b"%d" % KEPT) == [True, False, False, True]
    assert memories.bytes <= KEPT * SIZE


@pytest.fixture
def small():
    """A client of a gateway that keeps few replies, and its sessions."""
    state = scripted_state(TOKENIZER, script)
    app = gateway_app(state, GatewayConfig(sessions=20, recorded_tokens=60))
    with client_of(state, app) as http:
        yield http, app.state.sessions


def figures(http) -> dict[str, float]:
    page = http.get("/metrics").text
    return {name: float(n) for name, n in re.findall(r"arcforge:gateway_(\w+)\{[^}]*\} (\S+)", page)}


def test_a_request_whose_reply_was_forgotten_is_another_turn(small):
    http, sessions = small
    opened, busy = http.post("/sessions", json={}).json(), http.post("/sessions", json={}).json()
    assert ask(http, opened).status_code == 200
    assert "x-arcforge-replayed" in ask(http, opened, x_stainless_retry_count="1").headers
    sessions.kept.most_bytes = int(figures(http)["replies_bytes"] * 1.5)
    assert ask(http, busy).status_code == 200
    again = ask(http, opened, x_stainless_retry_count="1")
    assert again.status_code == 200 and "x-arcforge-replayed" not in again.headers
    assert len(record(http, opened).turns) == 2
    assert figures(http)["replies_forgotten_total"] == 2
    for each in (opened, busy):
        http.delete(f"/sessions/{each['id']}")
    assert figures(http)["replies_bytes"] == 0


def test_a_stored_response_may_be_forgotten_for_those_of_other_sessions(small):
    http, sessions = small

    def respond(opened, **fields):
        body = {"model": "small", "input": "plain one", "max_output_tokens": 40, **QUIET, **fields}
        return http.post(f"/sessions/{opened['id']}/v1/responses", json=body)

    first, second = (http.post("/sessions", json={}).json() for _ in range(2))
    stored = respond(first).json()["id"]
    sessions.kept.most_bytes = sessions.kept.bytes + 100
    assert respond(first, previous_response_id=stored, store=False).status_code == 200
    assert respond(second).status_code == 200
    assert respond(second).status_code == 200
    refused = respond(first, previous_response_id=stored)
    assert refused.status_code == 404 and "gateway.replies_mb" in refused.json()["error"]["message"]
    assert sessions.kept.bytes <= sessions.kept.most_bytes


def test_with_many_recorded_tokens_no_further_session_opens(small):
    http, sessions = small
    first, body = http.post("/sessions", json={}).json(), ONE
    while sessions.recorded < 60:
        reply = ask(http, first, body)
        assert reply.status_code == 200
        body = more(body, reply)
    assert (
        figures(http)["recorded_tokens"]
        == sessions.recorded
        == sum(len(part.tokens) for part in record(http, first).parts)
    )
    refused = http.post("/sessions", json={})
    assert refused.status_code == 429 and "gateway.recorded_tokens allows 60" in refused.json()["error"]["message"]
    assert ask(http, first, body).status_code == 200, "those that are open continue"
    http.delete(f"/sessions/{first['id']}")
    assert http.post("/sessions", json={}).status_code == 200
