"""The whole command, against a server of the test's own."""

import json
import sys
import threading

import pytest

from arcforge_core.cli.main import run_job
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_serving.bench.configs import BenchConfig, RandomWorkloadConfig


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    """``bench(server, *arguments)`` runs the command and returns its code, its report and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ARCFORGE_API_KEY", raising=False)

    def run(server, *arguments):
        monkeypatch.setattr(sys, "argv", ["arcforge-bench", f"url={server.url}", *arguments])
        code = run_job("bench")
        said = capsys.readouterr()
        found = sorted(tmp_path.glob("outputs/*/*-bench*/bench.json"))
        return code, json.loads(found[-1].read_text()) if found else None, said.out + said.err

    return run


FEW = ["workload.requests=5", "workload.input_tokens=[4,9]", "workload.output_tokens=[2,3]"]


def test_a_measurement_leaves_a_table_figures_and_a_picture(serve, answer, bench, tmp_path):
    usage = {"prompt_tokens": 8, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    server = serve(lambda body: answer(usage=usage, delay=0.02))
    code, report, said = bench(server, *FEW, "concurrency=2", "slo.e2e_ms=60000", "+extra.ignore_eos=true")
    assert code == 0, said
    assert report["model"] == "fake" and report["settings"]["workload"]["requests"] == 5
    figures = report["figures"]
    assert (figures["requests"], figures["failed"], figures["output_tokens"], figures["input_tokens"]) == (5, 0, 15, 40)
    assert (figures["cached_tokens"], figures["tokens_counted_by"]) == (10, "usage")
    assert figures["goodput"]["share"] == 1.0
    assert set(figures["ttft_ms"]) == {"mean", "p50", "p90", "p95", "p99", "max"}
    assert figures["e2e_ms"]["max"] >= figures["ttft_ms"]["max"] > figures["itl_ms"]["p50"] >= 20
    assert len(report["requests"]) == 5 and len(report["requests"][0]["arrivals_s"]) == 3
    (picture,) = tmp_path.glob("outputs/*/*-bench/bench.png")
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    assert "TTFT" in said and "p99" in said and "output_tokens_per_s" in said
    warmup, measured = server.measured[:2], server.measured[2:]
    assert [body["max_tokens"] for body in warmup] == [16, 16]
    assert len(measured) == 5 and server.most == 2
    assert all(body["ignore_eos"] is True and body["temperature"] == 0.0 for body in server.bodies)
    assert {len(body["prompt"].split()) for body in measured} <= set(range(4, 10))


def test_the_key_comes_from_the_environment(serve, bench, monkeypatch):
    server = serve(key="right")
    code, _, said = bench(server, *FEW)
    assert code == 2 and "wants a key: set ARCFORGE_API_KEY" in said
    monkeypatch.setenv("ARCFORGE_API_KEY", "right")
    assert bench(server, *FEW)[0] == 0


def test_errors_are_counted_by_kind_and_the_rest_is_measured(serve, answer, bench):
    def reply(body):
        number = len(server.measured)
        return answer(status=503, texts=["full"]) if number == 1 else answer(breaks=number == 2, usage=None)

    server = serve(reply)
    code, report, said = bench(server, *FEW, "warmup=0", "concurrency=1")
    assert code == 0
    assert {kind: found["count"] for kind, found in report["figures"]["errors"].items()} == {
        "HTTP 503": 1, "broken stream": 1,
    }  # fmt: skip
    assert "1 failed: HTTP 503: full" in said and "counted by chunks" in said


def test_nothing_that_succeeds_is_an_error_with_the_report_left(serve, answer, bench):
    server = serve(lambda body: answer(status=500, texts=["no"]) if server.measured else answer())
    code, report, said = bench(server, *FEW, "warmup=0")
    assert code == 2 and "none of 5 requests succeeded" in said and report["figures"]["failed"] == 5


def test_sessions_over_chat(serve, answer, bench):
    server = serve(lambda body: answer())
    sizes = ["workload.sessions=2", "workload.turns=[2,2]", "workload.system_tokens=4"]
    code, report, _ = bench(server, "workload=agent", *sizes, "api=chat", "warmup=0", "rate=100")
    assert code == 0 and report["figures"]["requests"] == 4
    assert [len(body["messages"]) for body in server.measured if len(body["messages"]) > 2] == [4, 4]


def test_files_and_tokenizers(serve, bench, tmp_path):
    file = tmp_path / "some.jsonl"
    file.write_text('{"prompt": "hello", "max_tokens": 3}\n')
    server = serve()
    assert bench(server, "workload=file", f"workload.path={file}", "warmup=0")[0] == 0
    assert [body["prompt"] for body in server.measured] == ["hello"]
    tokenizer = small_tokenizer()
    tokenizer.save(tmp_path / "tokenizer")
    code, _, said = bench(
        server, *FEW[:1], "workload.input_tokens=[30,30]", "warmup=0", f"tokenizer={tmp_path}/tokenizer"
    )
    assert code == 0, said
    assert all(30 <= len(tokenizer.encode(body["prompt"])) < 38 for body in server.measured[2:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model_name=other"], "model_name='other': "),
        (["rate=0"], "rate=0.0: must be above 0"),
        (["concurrency=0"], "concurrency=0: must be at least 1"),
        (["timeout=-1"], "timeout=-1.0: must be above 0"),
        (["api=responses"], "api='responses': must be one of completions, chat"),
        (["+extra.stream=false"], "extra='stream': is set by the benchmark itself"),
        (["tokenizer=nowhere"], "tokenizer='nowhere'"),
        (["workload=file"], "workload.path"),
        (["workload=files"], "accepted: agent, file, random, shared_prefix"),
        (["slo.ttft_ms=-1"], "slo.ttft_ms=-1.0: must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(serve, bench, tmp_path, arguments, message):
    code, report, said = bench(serve(), *arguments)
    assert code == 2 and message in said and report is None
    assert not (tmp_path / "outputs").exists()


def test_a_folder_that_cannot_be_written_is_named(serve, bench, tmp_path):
    (tmp_path / "outputs").write_text("a file")
    code, _, said = bench(serve())
    assert code == 2 and "output_dir='outputs': cannot be written" in said


def test_the_concurrency_without_a_rate_is_sixteen(serve, answer, bench):
    together = threading.Barrier(16)

    def reply(body):
        if len(server.bodies) > 1:  # but for the request that looks whether the server answers
            together.wait(timeout=60)
        return answer(texts=["a"])

    server = serve(reply)
    assert bench(server, "workload.requests=32", "workload.input_tokens=[2,2]", "warmup=0")[0] == 0
    assert server.most == 16


def test_the_defaults_are_those_of_the_schema():
    config = BenchConfig(RandomWorkloadConfig())
    assert (config.api, config.rate, config.concurrency) == ("completions", None, None)
