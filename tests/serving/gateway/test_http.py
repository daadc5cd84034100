"""Sessions over HTTP: how they are reached, limited, retried, closed and read, and what is refused."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest

from arcforge_core.contracts.sessions import SessionRecord
from arcforge_core.errors import ConfigError, DataError
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway import session
from arcforge_serving.gateway.app import gateway_app
from arcforge_serving.gateway.session import AgentSession, SessionLimitError
from arcforge_serving.server.gate.auth import Keys, digest_of
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.shared import generation
from serving.gateway.conftest import QUIET, script
from support.servers import client_of, listening, scripted_state
from support.sessions import TEMPLATE, TOKENIZER
from support.waiting import wait_until

ONE = {"model": "small", "messages": [{"role": "user", "content": "plain one"}], "max_tokens": 40, **QUIET}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(http, path="/v1/chat/completions", body=ONE, **headers):
    return http.post(path, json=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def ask(http, opened, body=ONE, **headers):
    return chat(http, f"/sessions/{opened['id']}/v1/chat/completions", body, **headers)


def record(http, opened, **headers) -> SessionRecord:
    return SessionRecord.from_json(http.get(f"/sessions/{opened['id']}", headers=headers).json())


def more(body, reply, text="plain three"):
    messages = [*body["messages"], reply.json()["choices"][0]["message"], {"role": "user", "content": text}]
    return {**body, "messages": messages}


# ---- reaching a session ----------------------------------------------------------------------------------------------


def test_a_session_is_reached_by_path_bearer_and_api_key(http, opened):
    assert opened["url"] == f"http://localhost/sessions/{opened['id']}"
    secret = opened["secret"]
    assert ask(http, opened).status_code == 200
    assert ask(http, opened, authorization=f"Bearer {secret}").status_code == 200
    assert ask(http, opened, authorization="Bearer EMPTY").status_code == 200
    assert chat(http, authorization=f"Bearer {secret}").status_code == 200
    assert chat(http, x_api_key=secret).status_code == 200
    assert len(record(http, opened).turns) == 5


def test_a_turn_decodes_no_text_and_makes_no_line_that_nobody_reads(http, opened, monkeypatch):
    called = []

    def noting(name, original):
        return lambda *given: called.append(name) or original(*given)

    for module, name in ((session, "turn_line"), (session, "reply_line"), (generation, "Reader")):
        monkeypatch.setattr(module, name, noting(name, getattr(module, name)))
    assert ask(http, opened).json()["choices"][0]["message"]["content"]
    assert not called
    assert ask(http, opened, {**ONE, "stop": ["nothing like it"]}).status_code == 200
    assert called == ["Reader"], "stop strings need the text"


def test_requests_without_a_session_are_not_recorded(http, opened):
    assert chat(http).status_code == 200
    assert not record(http, opened).turns


def test_another_sessions_secret_is_refused(http, opened):
    other = http.post("/sessions", json={}).json()
    for reply in (
        ask(http, opened, authorization=f"Bearer {other['secret']}"),
        http.get(f"/sessions/{opened['id']}", headers={"authorization": f"Bearer {other['secret']}"}),
        http.delete(f"/sessions/{opened['id']}", headers={"x-api-key": other["secret"]}),
    ):
        assert reply.status_code == 403 and reply.json()["error"]["message"] == "the key is another session's"
    assert not record(http, opened).turns


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/rl/pause", "/tokenize", "/v1/nothing"])
def test_sessions_speak_the_three_dialects_only(http, opened, path):
    reply = http.post(f"/sessions/{opened['id']}/v1{path.removeprefix('/v1')}", json={})
    assert reply.status_code == 404 and "a session has no such route" in reply.json()["error"]["message"]
    if path.startswith("/v1"):
        reply = http.post(path, json={}, headers={"authorization": f"Bearer {opened['secret']}"})
        assert reply.status_code == 404


def test_models_are_listed_in_a_session(http, opened):
    assert http.get(f"/sessions/{opened['id']}/v1/models").json()["data"][0]["id"] == "small"


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize("value", ['{"a": "\\ud800"}', '{"a": NaN}', nested(260)], ids=["surrogate", "NaN", "deep"])
def test_metadata_that_no_reply_can_hold_is_refused_before_a_turn(http, value):
    json_type = {"content-type": "application/json"}
    for path, rest in (("/sessions", ""), ("/v1/responses", ', "input": "plain"')):
        reply = http.post(path, content=f'{{"metadata": {value}{rest}}}', headers=json_type)
        assert reply.status_code == 400 and "metadata: must be JSON without NaN" in reply.text
    opened = http.post("/sessions", content=f'{{"metadata": {nested(240)}}}', headers=json_type).json()
    assert http.delete(f"/sessions/{opened['id']}").json()["metadata"] == json.loads(nested(240))


def test_after_close_all_is_404(http):
    opened = http.post("/sessions", json={"metadata": {"rollout": 7}}).json()
    ask(http, opened)
    closed = SessionRecord.from_json(http.delete(f"/sessions/{opened['id']}").json())
    assert len(closed.branches) == 1 and closed.metadata == {"rollout": 7}
    for reply in (
        ask(http, opened),
        chat(http, authorization=f"Bearer {opened['secret']}"),
        http.get(f"/sessions/{opened['id']}"),
        http.delete(f"/sessions/{opened['id']}"),
    ):
        assert reply.status_code == 404 and reply.json()["error"]["message"].endswith("or it was closed")


def test_with_keys_the_opener_and_the_secret_reach_the_record_and_an_agent_needs_no_key():
    state = scripted_state(TOKENIZER, script)
    state.guard = Guard(Keys((digest_of("trainer-1"), digest_of("trainer-2"))))
    one, two = ({"authorization": f"Bearer trainer-{n}"} for n in (1, 2))
    with client_of(state, gateway_app(state, GatewayConfig(sessions=2))) as http:
        assert http.post("/sessions", json={}).status_code == 401
        opened = http.post("/sessions", json={}, headers=one).json()
        assert ask(http, opened).status_code == 200
        assert http.get(f"/sessions/{opened['id']}").status_code == 401
        assert http.get(f"/sessions/{opened['id']}", headers=two).status_code == 403
        assert http.get(f"/sessions/{opened['id']}", headers=one).status_code == 200
        assert http.get(f"/sessions/{opened['id']}", headers={"x-api-key": opened["secret"]}).status_code == 200
        assert chat(http).status_code == 401  # the server's own routes


def test_too_many_sessions_are_refused():
    state = scripted_state(TOKENIZER, script)
    with client_of(state, gateway_app(state, GatewayConfig(sessions=1))) as http:
        opened = http.post("/sessions", json={}).json()
        assert http.post("/sessions", json={}).status_code == 429
        http.delete(f"/sessions/{opened['id']}")
        assert http.post("/sessions", json={}).status_code == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"max_turns": 0}, "max_turns"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"match": "fuzzy"}, "match"),
        ({"sessions": 3}, "sessions"),
        ({"fork_threshold_tokens": -1}, "fork_threshold_tokens"),
    ],
)
def test_wrong_options_are_named(http, body, named):
    reply = http.post("/sessions", json=body)
    assert reply.status_code == 400 and named in reply.json()["error"]["message"]


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_trained_ids_are_sampled_ids(http, opened, state):
    state.engine.prompts.clear()
    body = {**ONE, "return_token_ids": True, "logprobs": True}
    replies = [ask(http, opened, body)]
    for text in ("plain 3", "plain one"):
        body = more(body, replies[-1], text)
        replies.append(ask(http, opened, body))
    found = record(http, opened)
    (branch,) = found.branches
    assert [turn.drift for turn in found.turns] == ["new", "clean", "clean"]
    choices = [reply.json()["choices"][0] for reply in replies]
    assert branch.ids[branch.sampled].tolist() == [id_ for choice in choices for id_ in choice["token_ids"]]
    wanted = [entry["logprob"] for choice in choices for entry in choice["logprobs"]["content"]]
    assert branch.logprobs[branch.sampled].tolist() == pytest.approx(wanted)
    last = [*replies[-1].json()["prompt_token_ids"], *choices[-1]["token_ids"]]
    assert branch.ids.tolist() == last
    turn = found.turns[-1]
    assert (turn.dialect, turn.node, turn.parent, turn.finish_reason) == ("chat", 2, 1, "stop")
    assert turn.prompt_tokens == len(replies[-1].json()["prompt_token_ids"])
    assert turn.completion_tokens == len(choices[-1]["token_ids"]) and turn.cached_tokens > 0
    assert branch.branch_id == f"{opened['id']}.0" and set(branch.versions[branch.sampled]) == {0}


def test_streams_are_recorded_as_whole_replies_are(http, opened):
    reply = ask(http, opened, {**ONE, "stream": True})
    assert reply.text.endswith("data: [DONE]\n\n")
    found = record(http, opened)
    assert found.turns[0].finish_reason == "stop" and found.branches[0].num_sampled == found.turns[0].completion_tokens


def test_a_reply_that_a_stop_string_ended_is_continued(http, opened):
    body = {**ONE, "stop": ["three"]}
    reply = ask(http, opened, body)
    assert reply.json()["choices"][0]["message"]["content"].strip() == "two"
    assert ask(http, opened, more(body, reply)).status_code == 200
    assert [turn.drift for turn in record(http, opened).turns] == ["new", "clean"]


def test_a_truncated_turn_is_continued(http, opened):
    body = {**ONE, "max_tokens": 2}
    reply = ask(http, opened, body)
    assert reply.json()["choices"][0]["finish_reason"] == "length"
    ask(http, opened, more(body, reply))
    found = record(http, opened)
    assert [turn.finish_reason for turn in found.turns] == ["length", "length"] and len(found.branches) == 1


def test_made_up_tool_calls_are_context(http, opened):
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": "made up"}'}}
    messages = [
        {"role": "user", "content": "plain"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": "x"},
        {"role": "user", "content": "plain"},
    ]
    assert ask(http, opened, {**ONE, "messages": messages, "tools": [TOOL]}).status_code == 200
    (branch,) = record(http, opened).branches
    text = TOKENIZER.decode(branch.ids[branch.sampled].tolist())
    assert text == "two three<|user|>" and "made up" in TOKENIZER.decode(branch.ids.tolist())


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"n": 2}, 400, "n: must be 1 in a session"),
        ({"prompt_token_ids": [5, 6], "messages": []}, 400, "it knows the tokens itself"),
        ({"input_ids": [5, 6]}, 400, "it knows the tokens itself"),
        ({"model": "gpt-5"}, 404, "there is no model 'gpt-5'"),
        ({"messages": []}, 400, "must hold at least one message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages"),
        ({"max_tokens": 100_000}, 400, "maximum context length"),
        ({"session": "x"}, 400, "does not know the field"),
    ],
)
def test_what_a_session_cannot_record_is_refused(http, opened, change, status, message):
    reply = ask(http, opened, {**ONE, **change})
    assert reply.status_code == status and message in reply.json()["error"]["message"]
    found = record(http, opened)
    assert not found.branches and [turn.node for turn in found.turns] == [None]


def test_unknown_fields_of_messages_are_ignored_and_counted(http, opened):
    reply = ask(http, opened)
    body = more(ONE, reply)
    body["messages"][1]["provider_specific_fields"] = {"x": 1}
    again = ask(http, opened, body)
    assert again.headers["x-ignored-fields"] == "messages.provider_specific_fields"
    assert record(http, opened).turns[-1].drift == "clean"


# ---- retries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_gets_the_recorded_reply(http, opened, stream):
    body = {**ONE, "stream": stream}
    first = ask(http, opened, body, x_stainless_retry_count="0")
    again = ask(http, opened, body, x_stainless_retry_count="1")
    assert again.content == first.content and again.headers["x-arcforge-replayed"] == "true"
    assert len(record(http, opened).turns) == 1


def test_an_equal_request_that_is_no_retry_is_another_turn(http, opened):
    ask(http, opened)
    assert "x-arcforge-replayed" not in ask(http, opened).headers
    assert len(record(http, opened).branches) == 2


def test_an_idempotency_key_names_its_request(http, opened):
    first = ask(http, opened, idempotency_key="a")
    assert ask(http, opened, idempotency_key="a").content == first.content
    assert ask(http, opened, idempotency_key="b").content != first.content
    other = ask(http, opened, {**ONE, "max_tokens": 3}, idempotency_key="a")
    assert other.status_code == 400 and "request with another body" in other.json()["error"]["message"]
    assert len(record(http, opened).branches) == 2


def test_a_retry_of_a_refused_request_is_served_anew(http, opened):
    assert ask(http, opened, {**ONE, "n": 2}).status_code == 400
    assert ask(http, opened, {**ONE, "n": 2}, x_stainless_retry_count="1").status_code == 400
    assert ask(http, opened, ONE, x_stainless_retry_count="1").status_code == 200


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "limit"), [({"max_turns": 1}, "max_turns=1"), ({"max_tokens": 2}, "max_tokens=2")])
def test_a_limit_is_429_and_clients_do_not_try_again(http, option, limit):
    opened = http.post("/sessions", json=option).json()
    reply = ask(http, opened)
    assert reply.status_code == 200
    refused = ask(http, opened, more(ONE, reply))
    assert refused.status_code == 429 and limit in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert len(record(http, opened).turns) == 1
    assert ask(http, opened, ONE, x_stainless_retry_count="1").status_code == 200  # the recorded reply


def test_time_ends_a_session():
    now = 0.0
    session = AgentSession(TEMPLATE, GatewayConfig(max_seconds=5.0), clock=lambda: now)
    session.begin("chat").finish()
    now = 5.0
    with pytest.raises(SessionLimitError, match="max_seconds=5"):
        session.begin("chat")


def test_the_engine_knows_the_session():
    """A router, or `engine.prefix_at_update=keep`, tells sessions apart by it; a client's own name is not passed on."""
    state, seen = scripted_state(TOKENIZER, script), []
    submit = state.engine.submit

    def noted(prompt, params, **options):
        seen.append(options["session"])
        return submit(prompt, params, **options)

    state.engine.submit = noted
    with client_of(state, gateway_app(state, GatewayConfig(sessions=2))) as http:
        for _ in range(2):
            opened = http.post("/sessions", json={}).json()
            assert ask(http, opened, x_session_id="mine").status_code == 200
            assert seen.pop() == opened["id"]
        assert chat(http, x_session_id="mine").status_code == 200
        assert seen == ["mine"]


def test_a_final_turn_cannot_call_tools():
    state = scripted_state(TOKENIZER, script)
    seen = []
    submit = state.engine.submit

    def noted(prompt, params, **options):
        seen.append(dict(params.logit_bias))
        return submit(prompt, params, **options)

    state.engine.submit = noted
    with client_of(state, gateway_app(state, GatewayConfig(sessions=1, max_turns=1, final_turn=True))) as http:
        opened = http.post("/sessions", json={}).json()
        reply = ask(http, opened)
        body = more(ONE, reply)
        assert ask(http, opened, {**body, "n": 2}).status_code == 400  # a turn that failed is not the final one
        last = ask(http, opened, body)
        assert last.status_code == 200
        assert ask(http, opened, more(body, last)).status_code == 429
    assert seen == [{}, {TOKENIZER.special["<tool_call>"]: -100.0}]


def test_a_final_turn_needs_calls_that_begin_with_a_token():
    other = SimpleNamespace(tokenizer=SimpleNamespace(special={}))
    from arcforge_serving.gateway.sessions import Sessions

    with pytest.raises(ConfigError, match=r"final_turn.*<tool_call>"):
        Sessions(other, GatewayConfig(sessions=1, final_turn=True))


# ---- several at a time, and ends -------------------------------------------------------------------------------------


@pytest.fixture
def slow():
    """(state, `httpx`-like client) of a gateway on a port whose tokens take 50 ms each."""
    import httpx

    state = scripted_state(TOKENIZER, lambda text: "3" * 20 + "<|user|>")
    state.engine.seconds = 0.05
    app = gateway_app(state, GatewayConfig(sessions=5))
    with listening(state, app=app) as (_, address), httpx.Client(base_url=address, timeout=60) as http:
        yield state, http


def test_two_requests_at_a_time_are_siblings(slow):
    _, http = slow
    opened = http.post("/sessions", json={}).json()
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(ask(http, opened))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply.status_code for reply in replies] == [200, 200]
    found = record(http, opened)
    assert len(found.branches) == 2 and [turn.drift for turn in found.turns] == ["new", "new"]


def test_a_retry_while_the_first_request_runs_gets_its_reply(slow):
    _, http = slow
    opened = http.post("/sessions", json={}).json()
    replies = []
    thread = threading.Thread(target=lambda: replies.append(ask(http, opened)))
    thread.start()
    wait_until(lambda: len(slow[0].engine.prompts) == 1)
    again = ask(http, opened, ONE, x_stainless_retry_count="1")
    thread.join()
    assert again.content == replies[0].content and len(record(http, opened).turns) == 1


def test_closing_ends_a_running_turn(slow):
    state, http = slow
    opened = http.post("/sessions", json={}).json()
    replies = []
    thread = threading.Thread(target=lambda: replies.append(ask(http, opened)))
    thread.start()
    wait_until(lambda: len(state.engine.prompts) == 1)
    closed = SessionRecord.from_json(http.delete(f"/sessions/{opened['id']}").json())
    thread.join()
    assert not closed.branches
    assert replies[0].json()["choices"][0]["finish_reason"] == "abort"
    wait_until(lambda: state.engine.stats().running == 0)
    assert ask(http, opened).status_code == 404


def test_a_stream_that_the_client_cuts_is_not_recorded(slow):
    state, http = slow
    opened = http.post("/sessions", json={}).json()
    path = f"/sessions/{opened['id']}/v1/chat/completions"
    with http.stream("POST", path, json={**ONE, "stream": True}) as reply:
        next(reply.iter_lines())
    wait_until(lambda: state.engine.stats().running == 0)
    wait_until(lambda: record(http, opened).turns)
    found = record(http, opened)
    assert not found.branches and [(turn.node, turn.finish_reason) for turn in found.turns] == [(None, "gone")]
    state.engine.seconds = 0.0
    assert ask(http, opened, ONE, x_stainless_retry_count="1").status_code == 200
    assert len(record(http, opened).branches) == 1


# ---- the record ------------------------------------------------------------------------------------------------------


def test_a_record_is_read_back(http, opened):
    ask(http, opened)
    found = record(http, opened)
    assert SessionRecord.from_json(json.loads(json.dumps(found.as_json()))) == found
    for wrong in (
        {"version": 1},
        {"turns": [{}]},
        {"parts": [{"parent": None, "keep": 0, "ids": [1]}]},
        {"leaves": [9]},
    ):
        with pytest.raises(DataError, match="record"):
            SessionRecord.from_json({**found.as_json(), **wrong})
