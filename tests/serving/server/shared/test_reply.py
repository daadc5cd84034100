"""What can happen while a reply is under way, over a real socket."""

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from starlette.requests import ClientDisconnect

from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model
from arcforge_serving.server.openai.reply import DONE
from arcforge_serving.server.shared import reply
from arcforge_serving.server.shared.reply import EventStream, event
from support.servers import listening, small_state
from support.waiting import wait_until

LONG = {"prompt": [1, 2], "max_tokens": 5000, "ignore_eos": True}


@pytest.fixture(scope="module")
def served(tokenizer):
    model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=6000)
    state = small_state(tokenizer, model, max_waiting=8, max_running=4)
    with listening(state) as (_, address):
        yield state, address


def idle(engine):
    stats = engine.stats()
    return not stats.running and not stats.waiting


def connected(address):
    return socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])))


def send(raw, fields):
    body = json.dumps(fields).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    raw.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_goes_away_ends_its_generation(served, stream, n):
    state, address = served
    before = state.engine.stats().generated_tokens
    body = json.dumps({**LONG, "stream": stream, "n": n}).encode()
    with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1]))) as raw:
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}"
        )
        raw.sendall(f"{head}\r\n\r\n".encode() + body)
        wait_until(lambda: state.engine.stats().generated_tokens > before + 3)
    wait_until(lambda: idle(state.engine))
    assert state.engine.stats().generated_tokens < before + 5000
    state.engine.check()


def test_a_client_that_does_not_read_holds_nobody_up(served):
    state, address = served
    body = json.dumps({**LONG, "stream": True, "logprobs": 20}).encode()
    with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1]))) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}"
        )
        raw.sendall(f"{head}\r\n\r\n".encode() + body)
        wait_until(lambda: state.engine.stats().running)
        for _ in range(3):
            answer = httpx.post(f"{address}/v1/completions", json={"prompt": [1], "max_tokens": 3}, timeout=60)
            assert answer.status_code == 200
    wait_until(lambda: idle(state.engine))


def test_too_many_requests_are_told_to_come_back(served):
    state, address = served
    body = {**LONG, "n": 6, "stream": True}
    with httpx.Client(base_url=address, timeout=60) as client:
        with client.stream("POST", "/v1/completions", json=body) as first:
            assert first.status_code == 200
            wait_until(lambda: state.engine.stats().running == 4)
            full = client.post("/v1/completions", json={**LONG, "n": 7})
            assert full.status_code == 503
            assert full.json()["error"]["type"] == "overloaded_error"
        wait_until(lambda: idle(state.engine))
        assert client.post("/v1/completions", json={"prompt": [1], "n": 7, "max_tokens": 1}).status_code == 200


def test_an_abort_ends_streams_properly(served):
    state, address = served
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        extra = {"ignore_eos": True}
        stream = client.completions.create(model="small", prompt=[1], max_tokens=5000, stream=True, extra_body=extra)
        chunks = []
        for chunk in stream:
            chunks.append(chunk)
            if len(chunks) == 3:
                state.engine.abort()
        assert chunks[-1].choices[0].finish_reason == "abort"


def test_a_fault_in_the_middle_is_the_last_event(tokenizer):
    model = small_model(vocab_size=TOKENIZER_SIZE)
    state = small_state(tokenizer, model)
    good = model.lm_head.weight.detach().clone()
    with listening(state) as (_, address):
        with httpx.Client(base_url=address, timeout=60) as client:
            events = []
            body = {"prompt": [1], "max_tokens": 100, "ignore_eos": True, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as answer:
                for line in filter(None, answer.iter_lines()):
                    model.lm_head.weight.data.fill_(float("nan"))
                    events.append(line.removeprefix("data: "))
            assert events[-1] == "[DONE]"
            error = json.loads(events[-2])["error"]
            assert error["type"] == "server_error"
            assert "not finite" in error["message"]
            whole = client.post("/v1/completions", json={"prompt": [1]})
            assert whole.status_code == 500
            assert whole.json()["error"] == error
        with (
            openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
            pytest.raises(openai.APIError, match="not finite"),
        ):
            list(client.completions.create(model="small", prompt=[1], stream=True))
        model.lm_head.weight.data.copy_(good)
        assert httpx.post(f"{address}/v1/completions", json={"prompt": [1]}, timeout=60).status_code == 200


def test_an_event_is_one_line_for_clients_that_know_unicode():
    content = {"text": "a\u2028b\u2029c\x85d\x0be\nf\u00e9"}
    line, *rest = event(content).decode().splitlines()
    assert rest == [""]
    assert json.loads(line.removeprefix("data: ")) == content


def test_mixes_of_requests_give_what_each_gives_alone(served):
    state, address = served
    bodies = [
        {
            "prompt": [5 * n + 1] * (20 * n + 1),
            "max_tokens": 8 + n,
            "temperature": 0,
            "stream": n % 2 == 1,
        }
        for n in range(6)
    ]

    def ids(body):
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
            answer = client.completions.create(model="small", extra_body={"return_token_ids": True}, **body)
            parts = [answer] if not body["stream"] else list(answer)
            return [id_ for part in parts for id_ in part.choices[0].token_ids]

    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(ids, bodies))
    for body, found in zip(bodies, together, strict=True):
        out = state.engine.model.generate([body["prompt"]], max_new_tokens=body["max_tokens"])
        assert found == out[0, len(body["prompt"]) :].tolist()


def test_priority_and_client_reach_the_engine(served, monkeypatch):
    state, address = served
    seen, submit = [], state.engine.submit

    def noted(prompt, params, **fields):
        seen.append(fields)
        return submit(prompt, params, **fields)

    monkeypatch.setattr(state.engine, "submit", noted)
    body = {"prompt": [1], "max_tokens": 1, "priority": -3, "user": "alice"}
    assert httpx.post(f"{address}/v1/completions", json=body, timeout=60).status_code == 200
    assert seen == [{"priority": -3, "owner": "127.0.0.1", "salt": "", "session": ""}]


def test_a_stream_that_cannot_begin_is_closed():
    """Nobody iterates it then, and what it was to read would run on."""
    closed = []

    async def events():
        yield DONE

    async def gone(message):
        raise OSError("the client is gone")

    async def receive():
        await asyncio.Event().wait()

    stream = EventStream(events(), lambda: closed.append(True))
    with pytest.raises(ClientDisconnect):
        asyncio.run(stream({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, gone))
    assert closed == [True]


@pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
def test_a_stream_that_waits_is_kept_alive(served, monkeypatch, kind):
    """Comments are sent in its pauses only, never after its end, and the clients' packages skip them."""
    monkeypatch.setattr(reply, "QUIET_SECONDS", 0.05)
    state, address = served
    message = [{"role": "user", "content": "one"}]
    path, body = {
        "chat": ("chat/completions", {"messages": message, "max_tokens": 2}),
        "messages": ("messages", {"model": "small", "messages": message, "max_tokens": 2}),
        "responses": ("responses", {"input": message, "max_output_tokens": 2}),
    }[kind]
    state.engine.pause()
    resumed = threading.Timer(0.4, state.engine.resume)
    resumed.start()
    answer = httpx.post(f"{address}/v1/{path}", json={**body, "stream": True}, timeout=60)
    resumed.join()
    lines = [line for line in answer.text.split("\n") if line]
    assert 2 <= lines.count(": keep-alive") <= 50 and answer.text.count("data: ") >= 3
    last = max(place for place, line in enumerate(lines) if line.startswith("data: "))
    assert ": keep-alive" not in lines[last:]
    text = "".join(line for line in answer.text.split("\n\n") if not line.startswith(":"))
    assert "keep-alive" not in text


def test_clients_skip_comments(served, monkeypatch):
    monkeypatch.setattr(reply, "QUIET_SECONDS", 0.02)
    state, address = served
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)
    state.engine.pause()
    threading.Timer(0.3, state.engine.resume).start()
    stream = client.completions.create(model="small", prompt="one", max_tokens=3, stream=True)
    assert [part.choices[0].finish_reason for part in stream][-1] == "length"
