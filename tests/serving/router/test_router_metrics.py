from prometheus_client.parser import text_string_to_metric_families

from support.fake_fleet import DIE, reply, run_fakes

PAGE = """# HELP arcforge:prompt_tokens_total Tokens of prompts
# TYPE arcforge:prompt_tokens_total counter
arcforge:prompt_tokens_total{model_name="m"} %d.0
# HELP arcforge:paused Whether the engine is paused
# TYPE arcforge:paused gauge
arcforge:paused{model_name="m"} 0.0
# HELP arcforge:e2e_seconds Time
# TYPE arcforge:e2e_seconds histogram
arcforge:e2e_seconds_bucket{le="1.0",model_name="m"} 1.0
arcforge:e2e_seconds_bucket{le="+Inf",model_name="m"} 2.0
arcforge:e2e_seconds_count{model_name="m"} 2.0
arcforge:e2e_seconds_sum{model_name="m"} 3.0
"""


def plain(text):
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {len(text)}\r\n\r\n"
    return [(head + text).encode()]


def samples(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_all_engines_figures_are_shown_each_with_its_engine():
    def answer(number, method, path, body):
        if path == "/metrics":
            return plain(PAGE % (10 + number))
        return reply({}) if number else [DIE]

    async def work(found):
        assert (await found.http.post("/v1/completions", json={})).status_code == 200
        await found.until(lambda: len(found.fleet.ready) == 2)
        got = await found.http.get("/metrics")
        shown = samples(got.text)
        model = ("model_name", "m")
        for engine, tokens in (("0", 10), ("1", 11)):
            label = ("engine", engine)
            assert shown["arcforge:prompt_tokens_total", label, model] == tokens
            assert shown["arcforge:e2e_seconds_bucket", label, ("le", "+Inf"), model] == 2
            assert shown["arcforge:router_engine_up", label] == 1
        assert got.text.count("# TYPE arcforge:prompt_tokens_total counter") == 1
        assert shown["arcforge:router_requests_total", ("engine", "0"), ("outcome", "failed")] == 1
        assert shown["arcforge:router_requests_total", ("engine", "1"), ("outcome", "done")] == 1
        assert shown["arcforge:router_engine_restarts_total", ("engine", "0")] == 1
        assert shown[("arcforge:router_retries_total",)] == 1
        assert shown[("arcforge:router_refused_total",)] == 0

    run_fakes(answer, work)


def test_an_engine_that_does_not_answer_is_left_out_and_a_refusal_passed_on():
    async def left_out(found):
        shown = samples((await found.http.get("/metrics")).text)
        assert ("arcforge:paused", ("engine", "1"), ("model_name", "m")) in shown
        assert ("arcforge:paused", ("engine", "0"), ("model_name", "m")) not in shown

    async def refused(found):
        assert (await found.http.get("/metrics")).status_code == 401
        assert (await found.http.get("/metrics", headers={"authorization": "Bearer wrong-key"})).status_code == 401

    run_fakes(lambda number, *_: plain(PAGE % 1) if number else [DIE], left_out)
    run_fakes(lambda *_: reply({}, 401), refused)
