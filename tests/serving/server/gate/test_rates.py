import anthropic
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.gate import rates
from arcforge_serving.server.gate.auth import ADMIN_KEYS, USER_KEYS
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.gate.rates import LIMITED, RateLimitError, Rates
from support.servers import client_of, listening, small_state

ASK = {"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def refused(limit, holder="a"):
    try:
        limit.admit(holder)
    except RateLimitError as error:
        return int(error.headers["Retry-After"])
    return 0


def test_requests_come_back_evenly():
    clock = Clock()
    limit = Rates(requests=6, clock=clock)
    assert [refused(limit) for _ in range(7)] == [0] * 6 + [10]
    clock.now = 9.9
    assert refused(limit) == 1
    clock.now = 10.0
    assert [refused(limit), refused(limit)] == [0, 10]
    assert refused(limit, "b") == 0


def test_tokens_that_are_owed_come_back_first():
    clock = Clock()
    limit = Rates(tokens=60, clock=clock)
    assert refused(limit) == 0
    limit.spend("a", 90)
    assert refused(limit) == 30
    assert refused(limit, "b") == 0
    clock.now = 31.0
    assert refused(limit) == 0
    assert refused(limit, "b") == 0


def test_without_limits_nothing_is_counted():
    limit = Rates()
    limit.spend("a", 10**9)
    assert [refused(limit) for _ in range(1000)] == [0] * 1000


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 40)), max_size=40))
def test_who_waits_as_told_is_let_in(steps):
    """And never before more than a minute's worth, and one request's debt, has gone out."""
    clock = Clock()
    limit, spent, largest = Rates(requests=5, tokens=60, clock=clock), 0, 0
    for pause, tokens in steps:
        clock.now += pause
        if wait := refused(limit):
            clock.now += wait
            assert refused(limit) == 0
        limit.spend("a", tokens)
        spent, largest = spent + tokens, max(largest, tokens)
        assert spent <= 60 + clock.now + largest + 1e-6


def test_only_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(rates, "MOST_HOLDERS", 3)
    limit = Rates(requests=1, clock=Clock())
    for holder in "abcdef":
        assert refused(limit, holder) == 0
    assert len(limit._buckets) == 3
    assert refused(limit, "f") > 0


def guarded(tokenizer, **fields):
    state = small_state(tokenizer)
    config = ServeConfig(PagedEngineConfig(), **fields)
    state.guard = Guard.of(config, {USER_KEYS: "alice-key,bobby-key", ADMIN_KEYS: "admin-key"})
    return state


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("stream", [False, True])
def test_requests_of_a_key_are_limited(tokenizer, stream):
    with client_of(guarded(tokenizer, requests_per_minute=2)) as client:
        replies = [
            client.post("/v1/completions", json={**ASK, "stream": stream}, headers=bearer("alice-key"))
            for _ in range(3)
        ]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        error = replies[2].json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert "requests_per_minute=2" in error["message"]
        assert 1 <= int(replies[2].headers["retry-after"]) <= 30
        for key in ("bobby-key", "admin-key", "admin-key", "admin-key"):
            assert client.post("/v1/completions", json=ASK, headers=bearer(key)).status_code == 200
        assert client.get("/v1/models", headers=bearer("alice-key")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_prompts_and_outputs_count(tokenizer, stream):
    with client_of(guarded(tokenizer, tokens_per_minute=12)) as client:
        for wanted in (200, 200, 429):  # eight each: four are left, then none
            reply = client.post("/v1/completions", json={**ASK, "stream": stream}, headers=bearer("alice-key"))
            assert reply.status_code == wanted
        assert "tokens_per_minute=12" in reply.json()["error"]["message"]


def test_without_keys_an_address_is_limited(tokenizer):
    state = small_state(tokenizer)
    state.guard = Guard(rates=Rates(requests=1))
    with client_of(state) as client:
        assert [client.post("/v1/completions", json=ASK).status_code for _ in range(2)] == [200, 429]


def test_the_dialects_say_it_their_way(tokenizer):
    state = small_state(tokenizer)
    state.guard = Guard(rates=Rates(requests=1))
    with (
        listening(state) as (_, address),
        anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as claude,
    ):
        claude.messages.create(model="small", messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
        with pytest.raises(anthropic.RateLimitError) as caught:
            claude.messages.create(model="small", messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
        assert caught.value.body["error"]["type"] == "rate_limit_error"
        assert int(caught.value.response.headers["retry-after"]) > 0
        reply = httpx.post(f"{address}/v1/responses", json={"input": "a"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "rate_limit_exceeded")


def test_the_limited_paths_are_those_that_generate(tokenizer):
    with client_of(small_state(tokenizer)) as client:
        paths = client.get("/openapi.json").json()["paths"]
    generating = {path for path, methods in paths.items() if "text/event-stream" in str(methods.get("post", ""))}
    assert generating == {*LIMITED, "/v1/rl/generate"}, "administrators have no limits"


def test_behind_a_router_tokens_are_reported_and_nobody_is_refused(tokenizer):
    """And the router's key opens what an admin may; who else has it has none of this server's."""
    state, spent = guarded(tokenizer, requests_per_minute=1, tokens_per_minute=1), []
    state.guard = state.guard.behind_router("routers-key", lambda *taken: spent.append(taken))
    with client_of(state) as client:
        for key in ("alice-key", "alice-key", "bobby-key"):
            assert client.post("/v1/completions", json=ASK, headers=bearer(key)).status_code == 200
        holders = [holder for holder, _ in spent]
        assert holders[:4] == [holders[0]] * 4 and holders[4:] == [holders[4]] * 2 and holders[4] != holders[0]
        assert [tokens for _, tokens in spent] == [3, 5] * 3
        for key, status in (("routers-key", 200), ("alice-key", 403), ("other-key", 401), ("admin-key", 200)):
            assert client.post("/v1/rl/flush", headers=bearer(key)).status_code == status


def test_without_limits_on_tokens_a_router_is_told_nothing(tokenizer):
    state = guarded(tokenizer, requests_per_minute=1, tokens_per_minute=1)
    state.guard = state.guard.behind_router("routers-key", None)
    with client_of(state) as client:
        for _ in range(3):
            assert client.post("/v1/completions", json=ASK, headers=bearer("alice-key")).status_code == 200
