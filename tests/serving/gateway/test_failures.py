"""A session after a failed turn: ended by its trainer in any dialect, or without finite log-probabilities."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from arcforge_core.contracts.sessions import SessionRecord
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.app import gateway_app
from arcforge_serving.server.gate.record import ANTHROPIC
from serving.gateway.conftest import QUIET, script
from support.servers import client_of, listening, scripted_state
from support.sessions import TOKENIZER
from support.waiting import wait_until

USER = [{"role": "user", "content": "plain one"}]
BODIES = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 40},
    "/v1/responses": {"input": USER, "max_output_tokens": 40},
    ANTHROPIC: {"messages": USER, "max_tokens": 40},
}


def body_of(path: str, **further) -> dict:
    return {"model": "small", **QUIET, **BODIES[path], **further}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_closing_a_session_ends_a_turn_of_any_dialect(path, stream):
    state = scripted_state(TOKENIZER, lambda text: "3" * 200 + "<|user|>")
    state.engine.seconds = 0.05
    with (
        listening(state, app=gateway_app(state, GatewayConfig(sessions=1))) as (_, address),
        httpx.Client(base_url=address, timeout=60) as http,
    ):
        opened = http.post("/sessions", json={}).json()
        replies = []
        body = body_of(path, stream=stream)
        target = f"/sessions/{opened['id']}{path}"
        thread = threading.Thread(target=lambda: replies.append(http.post(target, json=body)))
        thread.start()
        wait_until(lambda: state.engine.stats().running)
        closed = SessionRecord.from_json(http.delete(f"/sessions/{opened['id']}").json())
        thread.join(60)
        assert not thread.is_alive() and not closed.branches
        wait_until(lambda: not state.engine.stats().running)
        assert http.post(target, json=body).status_code == 404
        assert replies[0].status_code == (200 if stream or path.endswith("chat/completions") else 503)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), None])
def test_tokens_without_a_finite_logprob_are_not_recorded(path, wrong):
    """The turn is a fault of the server, not a reply to train on; the session continues."""
    state, broken = scripted_state(TOKENIZER, script), [True]
    submit = state.engine.submit

    def spoilt(prompt, params, **options):
        (stream,) = submit(prompt, params, **options)
        result = stream.result

        def without(timeout=None):
            output = result(timeout)
            given = output.logprobs[:-1] if wrong is None else [*output.logprobs[:-1], wrong]
            return replace(output, logprobs=given) if broken.pop() else output

        stream.result = without
        return [stream]

    state.engine.submit = spoilt
    with client_of(state, gateway_app(state, GatewayConfig(sessions=1))) as http:
        opened = http.post("/sessions", json={}).json()
        target = f"/sessions/{opened['id']}{path}"
        assert http.post(target, json=body_of(path)).status_code == 500
        broken.append(False)
        assert http.post(target, json=body_of(path)).status_code == 200
        found = SessionRecord.from_json(http.get(f"/sessions/{opened['id']}").json())
    assert [turn.node for turn in found.turns] == [None, 0] and len(found.branches) == 1


CUT = {
    '{"a": "one", "b": "tw': {"a": "one", "b": "tw"},
    '{"a": "one", "b": tr': {"a": "one"},
    '{"a": [1, 2': {"a": [1, 2]},
    '{"a": "x\\ud8': {"a": "x"},
}
"""Arguments that were cut off, and the parameters that can be read."""


@pytest.mark.parametrize("given", [*CUT, '{"a": ', "{", '{"a": 1} x', "[1]", "two"])
def test_arguments_that_are_no_json_object_are_read_as_far_as_possible_and_counted(given):
    state = scripted_state(TOKENIZER, script)
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": given}}
    messages = [*USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "r"}, *USER]
    with client_of(state, gateway_app(state, GatewayConfig(sessions=1))) as http:
        opened = http.post("/sessions", json={}).json()
        body = body_of("/v1/chat/completions", messages=messages)
        reply = http.post(f"/sessions/{opened['id']}/v1/chat/completions", json=body)
        assert reply.status_code == 200
        assert reply.headers["x-ignored-fields"] == "messages.tool_calls.function.arguments_not_json"
    expected = CUT.get(given, {"arguments": given})
    written = "".join(
        f"<arg_key>{name}</arg_key><arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
        for name, value in expected.items()
    )
    assert f"<tool_call>f{written}</tool_call>" in state.engine.prompts[0]


def test_closing_ends_all_turns_and_only_one_close_has_the_record():
    """Three turns are under way, and two trainers close the session at the same time."""
    state = scripted_state(TOKENIZER, lambda text: "3" * 200 + "<|user|>")
    state.engine.seconds = 0.05
    with (
        listening(state, app=gateway_app(state, GatewayConfig(sessions=1))) as (_, address),
        httpx.Client(base_url=address, timeout=60) as http,
    ):
        opened = http.post("/sessions", json={}).json()
        path = f"/sessions/{opened['id']}"
        body = body_of("/v1/chat/completions")
        with ThreadPoolExecutor(5) as pool:
            turns = [pool.submit(http.post, f"{path}/v1/chat/completions", json=body) for _ in range(3)]
            wait_until(lambda: state.engine.stats().running == 3)
            closes = [pool.submit(http.delete, path) for _ in range(2)]
        assert sorted(each.result().status_code for each in closes) == [200, 404]
        assert [each.result().json()["choices"][0]["finish_reason"] for each in turns] == ["abort"] * 3
        (closed,) = [each.result().json() for each in closes if each.result().status_code == 200]
        assert not SessionRecord.from_json(closed).parts


def test_sessions_at_a_time_do_not_mix():
    state = scripted_state(TOKENIZER, lambda text: text.split("plain ")[-1].split("<")[0] + " two<|user|>")
    with (
        listening(state, app=gateway_app(state, GatewayConfig(sessions=8))) as (_, address),
        httpx.Client(base_url=address, timeout=60) as http,
    ):

        def play(number: int) -> None:
            session = http.post("/sessions", json={"metadata": {"number": number}}).json()
            messages = []
            for turn in range(3):
                messages.append({"role": "user", "content": f"plain {number} {turn}"})
                body = {**body_of("/v1/chat/completions"), "messages": messages}
                reply = http.post(f"/sessions/{session['id']}/v1/chat/completions", json=body)
                messages.append(reply.json()["choices"][0]["message"])
                assert messages[-1]["content"] == f"{number} {turn} two"
            found = SessionRecord.from_json(http.delete(f"/sessions/{session['id']}").json())
            assert [turn.drift for turn in found.turns] == ["new", "clean", "clean"]
            assert found.metadata == {"number": number} and len(found.branches) == 1
            text = TOKENIZER.decode(found.branches[0].ids.tolist())
            assert [text.count(f"{number} {turn} two") for turn in range(3)] == [1, 1, 1]

        with ThreadPoolExecutor(8) as pool:
            for each in [pool.submit(play, number) for number in range(8)]:
                each.result()
