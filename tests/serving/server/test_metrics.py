import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families

from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.server.app import create_app
from arcforge_serving.server.gate.auth import ADMIN_KEYS, USER_KEYS
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.shared.metrics import Metrics
from arcforge_serving.server.shared.state import ServerState
from support.servers import LOCAL

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)
"""What a Prometheus server accepts."""
ANCHORS = [
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total",
    "prefix_cache_hits_total", "num_preemptions_total", "prompt_tokens_total", "generation_tokens_total",
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
    "request_queue_time_seconds",
]  # fmt: skip
"""Names of vLLM, after its ``vllm:``, that are there from the beginning."""


def state(name: str = "small", **options: Any) -> ServerState:
    engine = PagedEngine(PagedEngineConfig(page_size=4, **options), small_model(vocab_size=TOKENIZER_SIZE))
    return ServerState(engine, small_tokenizer(), name)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(create_app(state(cache_tokens=128, max_running=8)), LOCAL) as client:
        yield client


def read(client: TestClient) -> dict[str, float]:
    """Returns the values by name and labels, without the model's name and the prefix."""
    page = client.get("/metrics")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/plain; version=")
    found = {}
    for line in page.text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert 'model_name="small"' in name
            found[re.sub(r",?model_name=\"small\",?", "", name).replace("{}", "").removeprefix("arcforge:")] = float(
                value
            )
    return found


def test_the_fields_names_are_there(client: TestClient) -> None:
    names = {re.sub(r"(_bucket|_sum|_count|_created)?(\{.*)?$", "", name) for name in read(client)}
    assert names.issuperset(ANCHORS)


def test_requests_are_counted(client: TestClient) -> None:
    body = {"prompt": list(range(2, 22)), "max_tokens": 9, "temperature": 0, "ignore_eos": True}
    for _ in range(2):
        assert client.post("/v1/completions", json=body).status_code == 200
    assert client.post("/v1/completions", json={**body, "stop_token_ids": list(range(TOKENIZER_SIZE))}).json()
    assert client.post("/v1/completions", json={**body, "temperature": -1}).status_code == 400  # counts nowhere
    found = read(client)
    assert found["prompt_tokens_total"] == found["prefix_cache_queries_total"] == 60
    assert found["generation_tokens_total"] == 19
    assert found["prefix_cache_hits_total"] == 32
    assert found['request_success_total{finished_reason="length"}'] == 2
    assert found['request_success_total{finished_reason="stop"}'] == 1
    for name, count in (("time_to_first_token", 3), ("e2e_request_latency", 3), ("request_queue_time", 3)):
        assert found[f"{name}_seconds_count"] == count
        assert 0 < found[f"{name}_seconds_sum"] < 60
    assert found["inter_token_latency_seconds_count"] <= 16
    assert found["num_requests_running"] == found["num_requests_waiting"] == found["kv_cache_usage_perc"] == 0
    assert 0 < found["kv_cache_shared_perc"] < 1
    assert found["engine_steps_total"] >= 10


def test_tokens_that_come_together_share_the_time() -> None:
    metrics = Metrics(state().engine, "small")
    metrics.received(2, 1.5, first=True)
    metrics.received(4, 2.0, first=False)
    metrics.finished("length", 3.5, GenerationOutput([1] * 6, [0.0] * 6, "length", 0, queue_seconds=0.25))
    metrics.finished("error", 1.0, None)
    metrics.updated("tensors", "refused", 0.02)
    page = metrics.page("")[0].decode()
    for line in (
        'time_to_first_token_seconds_sum{model_name="small"} 1.5',
        'inter_token_latency_seconds_count{model_name="small"} 4.0',
        'inter_token_latency_seconds_sum{model_name="small"} 2.0',
        'inter_token_latency_seconds_bucket{le="0.512",model_name="small"} 4.0',
        'inter_token_latency_seconds_bucket{le="0.256",model_name="small"} 0.0',
        'request_queue_time_seconds_sum{model_name="small"} 0.25',
        'request_queue_time_seconds_count{model_name="small"} 1.0',
        'e2e_request_latency_seconds_sum{model_name="small"} 4.5',
        'request_success_total{finished_reason="error",model_name="small"} 1.0',
    ):
        assert f"arcforge:{line}" in page
    assert re.search(r'rl_weight_update_operation_duration_seconds_sum\{[^}]*outcome="refused"[^}]*\} 0.02', page)


def test_applications_count_for_themselves() -> None:
    one, other = (create_app(state(name)) for name in ("one", "other"))
    with TestClient(one, LOCAL) as first, TestClient(other, LOCAL) as second:
        first.post("/v1/completions", json={"prompt": [1], "max_tokens": 2})
        assert 'arcforge:generation_tokens_total{model_name="one"} 2.0' in first.get("/metrics").text
        assert 'arcforge:generation_tokens_total{model_name="other"} 0.0' in second.get("/metrics").text


def test_an_engine_that_shares_no_prefixes_looks_none_up() -> None:
    with TestClient(create_app(state(prefix_cache=False)), LOCAL) as client:
        client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 2})
        found = read(client)
    assert (found["prompt_tokens_total"], found["prefix_cache_queries_total"]) == (3, 0)


def test_metrics_need_a_key_where_requests_do() -> None:
    guarded = state()
    guarded.guard = Guard.of(ServeConfig(PagedEngineConfig()), {USER_KEYS: "users-key", ADMIN_KEYS: "admin-key"})
    with TestClient(create_app(guarded), LOCAL) as client:
        assert client.get("/metrics").status_code == 401
        for key in ("users-key", "admin-key"):
            assert client.get("/metrics", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert [client.get(path).status_code for path in ("/health", "/ready", "/v1/models")] == [200, 200, 401]


def test_drafts_are_counted_by_position(client: TestClient) -> None:
    stats = client.app.state.server.engine.stats  # type: ignore[attr-defined]
    found = read(client)
    assert found["spec_decode_num_drafts_total"] == stats().drafts
    told = replace(stats(), drafts=5, draft_tokens=15, accepted_by_position=[4, 2, 1])
    client.app.state.server.engine.stats = lambda: told  # type: ignore[attr-defined]
    found = read(client)
    names = ("drafts", "draft_tokens", "accepted_tokens")
    assert [found[f"spec_decode_num_{name}_total"] for name in names] == [5, 15, 7]
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    assert [found[f'{name}{{position="{n}"}}'] for n in range(3)] == [4, 2, 1]


def test_the_page_is_read_by_prometheus_own_parsers(client: TestClient) -> None:
    client.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 2, "metadata": {}})
    for accept, parse, kind in (
        ("", text_string_to_metric_families, "text/plain"),
        ("text/plain;version=0.0.4", text_string_to_metric_families, "text/plain"),
        ("application/openmetrics-text; version=1.0.0", parse_open_metrics, "application/openmetrics-text"),
        (PROMETHEUS, parse_open_metrics, "application/openmetrics-text"),
    ):
        page = client.get("/metrics", headers={"accept": accept})
        assert page.headers["content-type"].startswith(kind)
        families = {family.name: family for family in parse(page.text)}
        generated = families["arcforge:generation_tokens"]
        assert [sample.value for sample in generated.samples if sample.name.endswith("_total")] == [2.0], accept
        assert families["arcforge:time_to_first_token_seconds"].type == "histogram"
