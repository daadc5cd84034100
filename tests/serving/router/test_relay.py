import asyncio
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_serving.router.relay import whole_events
from support.fake_fleet import DIE, USER, reply, run_fakes, stream

ASK = {"prompt": "one", "max_tokens": 3}
ONE, TWO, DONE = b'data: {"a": 1}\n\n', b'data: {"b": 2}\n\n', b"data: [DONE]\n\n"


def by_engine(*answers):
    """Returns a fake's function: what each engine says."""
    return lambda number, method, path, body: answers[number]


def test_requests_and_replies_go_through_as_they_are():
    def answer(number, method, path, body):
        return reply({"got": json.loads(body), "method": method, "path": path}, 201)

    async def work(found):
        headers = {"x-request-id": "mine", "cookie": "a"}
        got = await found.http.post("/v1/completions?a=1&b=%20", json=ASK, headers=headers)
        assert got.status_code == 201
        assert got.json() == {"got": ASK, "method": "POST", "path": "/v1/completions?a=1&b=%20"}
        assert got.headers["x-arcforge-engine"] == "0"
        assert got.headers["content-type"] == "application/json"
        ((_, _, _, sent, _),) = found.seen
        assert sent["x-request-id"] == "mine" and sent["authorization"] == USER["authorization"]

    run_fakes(answer, work)


def test_a_stream_goes_through_event_by_event():
    async def work(found):
        got = await found.http.post("/v1/completions", json={**ASK, "stream": True})
        assert got.content == ONE + TWO + DONE
        assert got.headers["content-type"].startswith("text/event-stream")
        assert "content-length" not in got.headers

    run_fakes(by_engine(stream(ONE[:5], ONE[5:] + TWO[:-1], TWO[-1:] + DONE), []), work)


@pytest.mark.parametrize("first", [[DIE], stream(DIE), stream(ONE[:9], DIE), [b"HTTP/1.1 200 OK\r\ncontent-le", DIE]])
@pytest.mark.parametrize("second", [stream(ONE, DONE), reply({"a": 1})])
def test_an_engine_that_dies_before_anything_was_sent_costs_nothing(first, second):
    async def work(found):
        got = await found.http.post("/v1/completions", json=ASK)
        assert got.status_code == 200
        assert got.content in (ONE + DONE, b'{"a": 1}')
        assert got.headers["x-arcforge-engine"] == "1"
        assert found.counts.requests == {("0", "failed"): 1, ("1", "done"): 1}
        assert found.counts.retries == 1
        await found.until(lambda: len(found.fleet.ready) == 2)
        assert [member.restarts for member in found.fleet.members] == [1, 0]

    run_fakes(by_engine(first, second), work)


def test_a_reply_of_which_a_part_came_is_asked_for_again():
    half = reply({"a": "x" * 100})[0][:-20]

    async def work(found):
        assert (await found.http.post("/v1/completions", json=ASK)).json() == {"b": 2}

    run_fakes(by_engine([half, DIE], reply({"b": 2})), work)


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/completions", [{"type": "server_error", "param": None, "code": None}, "[DONE]"]),
        ("/v1/messages", ["api_error"]),
        ("/v1/responses", ["server_error"]),
    ],
)
def test_a_stream_that_breaks_off_ends_with_an_error_and_is_not_tried_again(path, end):
    async def work(found):
        got = await found.http.post(path, json=ASK)
        assert got.content.startswith(ONE), "what came whole"
        assert TWO[:10] not in got.content, "half an event is dropped"
        *events, last = got.content.decode().removesuffix("\n\n").split("\n\n")[1:]
        if path == "/v1/completions":
            (event,) = events
            error = json.loads(event.removeprefix("data: "))["error"]
            assert "engine 0 died" in error.pop("message")
            assert [error, last.removeprefix("data: ")] == end
        else:
            name, data = last.split("\n")
            assert name == "event: error"
            found_error = json.loads(data.removeprefix("data: "))
            assert [found_error.get("code") or found_error["error"]["type"]] == end
            assert "engine 0 died" in last
        assert [number for number, *_ in found.seen] == [0]
        assert found.counts.requests == {("0", "broken"): 1}

    run_fakes(by_engine(stream(ONE, TWO[:10], DIE), stream(ONE, DONE)), work)


def test_a_request_that_kills_engines_does_not_kill_all():
    async def work(found):
        got = await found.http.post("/v1/completions", json=ASK)
        assert got.status_code == 502
        assert "died before it answered" in got.json()["error"]["message"]
        assert len({number for number, *_ in found.seen}) == len(found.seen) == 2
        assert sum(member.restarts == 0 for member in found.fleet.members) >= 1

    run_fakes(lambda *_: [DIE], work, count=3)


def test_without_retries_the_first_one_decides():
    async def work(found):
        assert (await found.http.post("/v1/messages", json=ASK)).json()["error"]["type"] == "api_error"

    run_fakes(by_engine([DIE], reply({})), work, retries=0)


def test_a_busy_engine_is_passed_by_and_its_answer_given_when_all_are():
    busy = reply({"error": {"message": "too many requests wait"}}, 503)

    async def passed_by(found):
        assert (await found.http.post("/v1/completions", json=ASK)).json() == {"a": 1}

    async def all_busy(found):
        got = await found.http.post("/v1/completions", json=ASK)
        assert got.status_code == 503 and "too many requests wait" in got.text

    run_fakes(by_engine(busy, reply({"a": 1})), passed_by)
    run_fakes(by_engine(busy, busy), all_busy)


def test_a_client_that_goes_away_ends_its_request():
    async def work(found):
        going, sent = asyncio.Event(), []
        messages = [{"type": "http.request", "body": json.dumps(ASK).encode(), "more_body": False}]

        async def receive():
            if messages:
                return messages.pop()
            await going.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions",
            "query_string": b"", "headers": [(b"authorization", b"Bearer users-key")], "app": None,
            "http_version": "1.1", "scheme": "http", "server": ("a", 1), "root_path": "",
        }  # fmt: skip
        asking = asyncio.create_task(found.app(scope, receive, send))
        await found.until(lambda: len(sent) == 2)  # the start, and the first event
        assert found.fleet.members[0].in_flight == 1
        going.set()
        await asking
        await found.until(lambda: hung_up)
        assert found.fleet.members[0].in_flight == 0
        assert found.counts.requests == {("0", "left"): 1}

    def answer(number, method, path, body):
        yield from stream(ONE, DIE)[:2]
        try:
            while True:
                yield b"4\r\n: a\n\r\n"
        finally:
            hung_up.append(number)

    hung_up = []
    run_fakes(answer, work)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer no-such-key"}, 401),
        ({"authorization": ""}, 401),
        ({}, 200),
        ({"authorization": "", "x-api-key": "users-key"}, 200),
        ({"authorization": "", "x-api-key": "no-such-key"}, 401),
    ],
)
def test_keys_are_looked_at_before_the_body_and_by_the_router(headers, status):
    async def work(found):
        read = []

        async def body():
            read.append(1)
            yield json.dumps(ASK).encode()

        got = await found.http.post("/v1/completions", content=body(), headers=headers)
        assert got.status_code == status
        assert len(found.seen) == (status == 200)

    run_fakes(by_engine(reply({}), reply({})), work)


def test_bodies_are_limited():
    async def work(found):
        got = await found.http.post("/v1/completions", content=b"x" * (2**20 + 1))
        assert got.status_code == 413 and "max_body_mb" in got.text
        assert not found.seen

    run_fakes(by_engine(reply({}), reply({})), work)


@given(st.lists(st.binary(min_size=1, max_size=6).filter(lambda b: b"\n" not in b), max_size=8), st.data())
def test_streams_are_cut_between_events_wherever_the_parts_are(texts, data):
    whole = b"".join(text + b"\n\n" for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    async def read(parts):
        async def feed():
            for part in parts:
                yield part

        return [events async for events in whole_events(feed())]

    found = asyncio.run(read(parts))
    assert b"".join(found) == whole
    assert all(events.endswith(b"\n\n") for events in found)
    with pytest.raises(httpx.RemoteProtocolError):
        asyncio.run(read([*parts, b"half"]))
