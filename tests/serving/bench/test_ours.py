"""The command against our own server: streams, usage, cached tokens, sessions."""

import json
import sys

import pytest

from arcforge_core.cli.main import run_job
from arcforge_core.testing.small_models import small_tokenizer
from support.servers import listening, small_state


@pytest.fixture(scope="module")
def url():
    with listening(small_state(small_tokenizer(), page_size=4)) as (_, address):
        yield f"{address}/v1"


@pytest.fixture
def bench(url, tmp_path, monkeypatch):
    """``bench(*arguments)`` runs the command and returns its figures."""
    monkeypatch.chdir(tmp_path)
    small_tokenizer().save(tmp_path / "tokenizer")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["arcforge-bench", f"url={url}", "tokenizer=tokenizer", *arguments])
        assert run_job("bench") == 0
        (file,) = tmp_path.glob("outputs/*/*-bench*/bench.json")
        return json.loads(file.read_text())["figures"]

    return run


def test_random_requests(bench):
    figures = bench("workload.requests=6", "workload.input_tokens=[20,40]", "workload.output_tokens=[4,4]", "warmup=1")
    assert figures["failed"] == 0 and figures["errors"] == {}
    assert figures["tokens_counted_by"] == "usage"
    assert 6 <= figures["output_tokens"] <= 24  # an end token may come early
    assert 6 * 20 <= figures["input_tokens"] <= 6 * 50
    assert figures["ttft_ms"]["p50"] > 0


def test_shared_prefixes_are_found_in_the_cache(bench):
    sizes = ["workload.requests=5", "workload.input_tokens=100", "workload.output_tokens=2", "concurrency=1"]
    figures = bench("workload=shared_prefix", *sizes, "seed=7")
    assert figures["failed"] == 0
    assert 0.6 < figures["cached_share"] < 0.9  # 90% of four of five prompts, in whole pages


def test_sessions_find_their_own_past_in_the_cache(bench):
    sizes = [f"workload.{name}=[{n},{n}]" for name, n in (("turns", 3), ("result_tokens", 20), ("output_tokens", 3))]
    figures = bench("workload=agent", "api=chat", "workload.sessions=2", "workload.system_tokens=40", *sizes)
    assert figures["failed"] == 0 and figures["requests"] == 6
    assert figures["cached_share"] > 0.3
