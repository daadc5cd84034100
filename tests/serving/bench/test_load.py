import asyncio
import itertools
import statistics
import threading
import time

import pytest

from arcforge_serving.bench.client import Client
from arcforge_serving.bench.load import NOT_SENT, LoadGenerator
from arcforge_serving.bench.workloads import Message, Session, Turn, single


def run(server, sessions, rate=None, concurrency=None, **options):
    async def go():
        async with Client(server.url, options.pop("api", "completions"), **options) as client:
            client.model = "fake"
            return await LoadGenerator(client, rate, concurrency, seed=1).run(sessions, "sending")

    return asyncio.run(go())


def some(count):
    return [single(f"p{n}", n + 1) for n in range(count)]


def together(count, answer):
    """Returns replies that come when this many requests are there."""
    barrier = threading.Barrier(count)

    def reply(body):
        barrier.wait(timeout=60)
        return answer()

    return reply


@pytest.mark.parametrize("concurrency", [1, 3])
def test_so_many_at_a_time_and_no_more(serve, answer, concurrency):
    server = serve(together(concurrency, lambda: answer(delay=0.01)))
    records = run(server, some(9), concurrency=concurrency)
    assert server.most == concurrency
    assert {body["prompt"] for body in server.bodies} == {f"p{n}" for n in range(9)}
    assert all(body["max_tokens"] == int(body["prompt"][1:]) + 1 for body in server.bodies)
    assert sorted(record.session for record in records) == list(range(9))
    assert all(record.late == 0.0 for record in records)  # without a rate a request is due when its place is free


def test_without_a_limit_all_go_at_once(serve, answer):
    server = serve(together(6, answer))
    run(server, some(6))
    assert server.most == 6


def test_a_rate_spreads_the_requests_and_repeats_itself(serve):
    server = serve()
    start = time.perf_counter()
    records = run(server, some(12), rate=60.0)
    assert (
        time.perf_counter() - start > max(record.due for record in records) > 0.05
    )  # nothing is sent before it is due
    assert all(record.late >= 0.0 for record in records)
    wanted = LoadGenerator(None, 60.0, None, seed=1).arrivals(12)
    assert sorted(record.due for record in records) == wanted
    assert LoadGenerator(None, 60.0, None, seed=2).arrivals(12) != wanted


def test_arrivals_are_those_of_a_poisson_process():
    times = LoadGenerator(None, 4.0).arrivals(4000)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.08)  # as the mean: exponential


def test_waiting_for_a_place_counts_when_a_rate_says_when_a_request_was_due(serve, answer):
    server = serve(lambda body: answer(texts=["a"], delay=0.1))
    records = run(server, some(4), rate=1000.0, concurrency=1)
    latest = max(records, key=lambda record: record.late)
    assert server.most == 1 and latest.late > 0.25
    assert latest.seconds == pytest.approx(latest.late + latest.reply.seconds)
    assert latest.arrivals[0] == pytest.approx(latest.late + latest.reply.arrivals[0])


def test_a_session_grows_by_replies_and_its_turns_come_one_after_the_other(serve, answer):
    server = serve(lambda body: answer(texts=["yes"]))
    turns = (Turn((Message("system", "s"), Message("user", "a")), 3), Turn((Message("user", "b"),), 4))
    records = run(server, [Session(turns, pause=0.1)], api="chat")
    first, second = ([(m["role"], m["content"]) for m in body["messages"]] for body in server.bodies)
    assert first == [("system", "s"), ("user", "a")]
    assert second == [*first, ("assistant", "yes"), ("user", "b")]
    assert [record.turn for record in records] == [0, 1]
    assert records[1].due >= records[0].due + records[0].seconds + 0.1


def test_turns_behind_one_that_failed_are_not_sent_and_told(serve, answer):
    server = serve(lambda body: answer(breaks="b" in body["prompt"]))
    turns = tuple(Turn((Message("user", text),), 3) for text in ("a", "b", "d", "e"))
    records = run(server, [Session(turns), *some(2)])
    errors = [record.reply.error for record in sorted(records, key=lambda r: (r.session, r.turn))]
    assert errors == [None, "broken stream", NOT_SENT, NOT_SENT, None, None]
    assert len(server.bodies) == 4
