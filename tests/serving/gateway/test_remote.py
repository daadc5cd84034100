"""Sessions before an engine of another server: the recorded tokens and log-probs are the ones that it sampled."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.configs import AutoHardwareConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.contracts.sessions import SessionRecord
from arcforge_core.errors import ConfigError
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model
from arcforge_serving.configs import (
    ArcforgeEngineConfig,
    GatewayConfig,
    PagedEngineConfig,
    ServeConfig,
    SglangEngineConfig,
    VllmEngineConfig,
)
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.gateway.app import gateway_app
from arcforge_serving.server.gate.auth import Keys, digest_of
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.serve import load_state
from serving.gateway.conftest import QUIET
from support.remote_servers import FakeSglang, FakeVllm, serving
from support.servers import client_of, listening, small_state
from support.sessions import TOKENIZER

KINDS = ["vllm", "sglang", "arcforge"]
SAID = {"temperature": 0, **QUIET}


@pytest.fixture(scope="module")
def model():
    return small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote") / "small"
    save_pretrained(model, folder, TOKENIZER)
    return str(folder)


@contextmanager
def server_of(kind, model, stream):
    """Yields the configuration of an engine, and whatever answers it."""
    if kind == "arcforge":
        state = small_state(TOKENIZER, model, cache_tokens=4096)
        state.guard = Guard(Keys(admins=(digest_of("admin-of-the-tests"),)))
        with listening(state) as (_, address):
            yield ArcforgeEngineConfig(url=address, stream=stream), state
        return
    fake = (FakeVllm if kind == "vllm" else FakeSglang)(model)
    further = {"original_logprobs": True} if kind == "sglang" else {}
    with serving(fake) as address:
        config = VllmEngineConfig if kind == "vllm" else SglangEngineConfig
        yield config(url=address, stream=stream, **further), fake


@contextmanager
def gateway(engine, folder):
    state = load_state(ServeConfig(engine, AutoHardwareConfig(), folder, gateway=GatewayConfig(sessions=2)))
    with client_of(state, gateway_app(state, GatewayConfig(sessions=2))) as http:
        yield http


def turns(http, base):
    """Plays a turn in each dialect, and one that continues the first."""
    user = [{"role": "user", "content": "one two"}]
    body = {"messages": user, "max_tokens": 6, "logprobs": True, **SAID}
    first = http.post(f"{base}/chat/completions", json=body)
    assert first.status_code == 200, first.text
    message = first.json()["choices"][0]["message"]
    body["messages"] = [*user, message, {"role": "user", "content": "three"}]
    replies = [
        http.post(f"{base}/chat/completions", json={**body, "stream": True}),
        http.post(f"{base}/messages", json={"model": "small", "messages": user, "max_tokens": 5, **SAID}),
        http.post(f"{base}/responses", json={"input": user, "max_output_tokens": 4, **SAID}),
    ]
    assert [reply.status_code for reply in replies] == [200] * 3, [reply.text for reply in replies]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_session_records_what_the_server_sampled(kind, stream, model, folder, monkeypatch):
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", "admin-of-the-tests")
    with server_of(kind, model, stream) as (config, _), gateway(config, folder) as http:
        opened = http.post("/sessions", json={}).json()
        turns(http, f"/sessions/{opened['id']}/v1")
        assert http.get("/health").status_code == 200 and http.get("/metrics").status_code == 200
        found = SessionRecord.from_json(http.delete(f"/sessions/{opened['id']}").json())
    assert [turn.drift for turn in found.turns] == ["new", "clean", "new", "new"]
    assert [turn.finish_reason for turn in found.turns] == ["length"] * 4
    with_engine = PagedEngine(PagedEngineConfig(cache_tokens=4096), model)
    for part, turn in zip(found.parts, found.turns, strict=True):
        ids = part.tokens.ids.tolist()
        if part.parent is not None:
            ids = [*found.parts[part.parent].tokens.ids.tolist()[: part.keep], *ids]
        count = turn.completion_tokens
        params = SamplingParams(max_new_tokens=count, temperature=0.0)
        (output,) = with_engine.generate([ids[:-count]], params)
        assert output.token_ids == ids[-count:]
        assert part.tokens.logprobs[-count:].tolist() == pytest.approx(output.logprobs, abs=1e-5)
        assert set(part.tokens.versions[-count:]) == {0}


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_that_fails_is_typed_and_the_session_continues(kind, model, folder):
    from starlette.responses import JSONResponse

    with server_of(kind, model, True) as (config, fake), gateway(config, folder) as http:
        opened = http.post("/sessions", json={}).json()
        path = f"/sessions/{opened['id']}/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": "one"}], "max_tokens": 3, **SAID}
        fake.faults.append(JSONResponse({"error": "out of memory"}, 500))
        reply = http.post(path, json=body)
        assert reply.status_code == 503 and reply.json()["error"]["code"] == "engine_failed"
        assert http.post(path, json=body, headers={"x-stainless-retry-count": "1"}).status_code == 200
        found = SessionRecord.from_json(http.get(f"/sessions/{opened['id']}").json())
    assert [(turn.node, turn.finish_reason) for turn in found.turns] == [(None, "error"), (0, "length")]


@pytest.mark.parametrize(
    ("options", "named"), [({"dp": 2}, "dp=2"), ({"prefill": 1}, "prefill=1"), ({"lesson": ["x"]}, "lesson=")]
)
def test_options_of_our_own_engines_are_refused(options, named):
    with pytest.raises(ConfigError, match=rf"{named}.*with engine=vllm: its server has the engines"):
        ServeConfig(VllmEngineConfig(), AutoHardwareConfig(), "x", **options)
