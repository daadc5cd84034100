import pytest

from arcforge_serving.bench.client import StreamedReply
from arcforge_serving.bench.configs import SloConfig
from arcforge_serving.bench.figures import keeps, latencies, spread, summarise
from arcforge_serving.bench.load import Record


def record(due=0.0, late=0.0, arrivals=(0.1, 0.2, 0.4), seconds=0.5, prompt=10, tokens=5, cached=None, error=None):
    reply = StreamedReply(
        "text", list(arrivals), seconds, prompt, tokens, cached, "stop", error, "why" if error else ""
    )
    return Record(0, 0, due, late, reply)


def test_latencies_of_a_request():
    found = latencies(record())
    assert found["ttft_ms"] == pytest.approx([100])
    assert found["itl_ms"] == pytest.approx([100, 200])
    assert found["tpot_ms"] == pytest.approx([75])  # 300 ms for the four tokens after the first
    assert found["e2e_ms"] == pytest.approx([500])


def test_waiting_counts_to_the_first_token_and_the_whole():
    found = latencies(record(late=1.0))
    assert found["ttft_ms"] == pytest.approx([1100])
    assert found["tpot_ms"] == pytest.approx([75])
    assert found["e2e_ms"] == pytest.approx([1500])


def test_one_token_has_no_time_per_further_token():
    found = latencies(record(arrivals=[0.1], tokens=1))
    assert found["tpot_ms"] == found["itl_ms"] == []


def test_percentiles():
    found = spread([float(n) for n in range(1, 102)])
    assert found == {"mean": 51.0, "p50": 51.0, "p90": 91.0, "p95": 96.0, "p99": 100.0, "max": 101.0}
    assert spread([]) == {}


def test_rates_count_what_succeeded_from_the_first_request_to_the_last_end():
    records = [record(2.0), record(3.0, seconds=9.0, cached=4), record(5.0, error="timeout", arrivals=())]
    found = summarise(records, SloConfig())
    assert (found["requests"], found["failed"], found["seconds"]) == (3, 1, 10.0)
    assert (found["requests_per_s"], found["output_tokens_per_s"], found["input_tokens_per_s"]) == (0.2, 1.0, 2.0)
    assert (found["cached_tokens"], found["cached_share"]) == (4, 0.2)
    assert found["errors"] == {"timeout": {"count": 1, "first": "why"}}
    assert found["tokens_counted_by"] == "usage"
    assert "goodput" not in found


def test_chunks_stand_for_tokens_where_the_server_does_not_count():
    found = summarise([record(prompt=None, tokens=None)] * 2, SloConfig())
    assert found["output_tokens"] == 6 and found["tokens_counted_by"] == "chunks"
    assert found["input_tokens"] is None and found["input_tokens_per_s"] is None and found["cached_tokens"] is None
    mixed = summarise([record(prompt=None, tokens=None), record()], SloConfig())
    assert mixed["tokens_counted_by"] == "usage of 1, chunks of 1 requests"


@pytest.mark.parametrize(
    ("slo", "kept"),
    [
        ({"ttft_ms": 101.0}, True),
        ({"ttft_ms": 99.0}, False),
        ({"tpot_ms": 76.0}, True),
        ({"tpot_ms": 74.0}, False),
        ({"e2e_ms": 501.0, "ttft_ms": 101.0}, True),
        ({"e2e_ms": 499.0, "ttft_ms": 101.0}, False),
    ],
)
def test_goodput_wants_every_bound_kept(slo, kept):
    assert keeps(record(), SloConfig(**slo)) is kept
    assert not keeps(record(error="timeout"), SloConfig(**slo))
    found = summarise([record(), record(error="timeout")], SloConfig(**slo))
    assert found["goodput"] == {"share": kept / 2, "requests_per_s": kept / 0.5}


def test_nothing_that_succeeded_has_no_latencies():
    found = summarise([record(error="timeout")], SloConfig())
    assert found["ttft_ms"] == {} and found["requests_per_s"] == 0.0
