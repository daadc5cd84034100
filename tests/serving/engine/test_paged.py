import asyncio
import threading
import time
from dataclasses import replace

import pytest
import torch

from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.testing.engine_suite import CountsDown
from arcforge_core.testing.small_models import small_model
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine import driver
from arcforge_serving.engine.errors import ClosedError, IntegrityError, QueueFullError
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.engine.stream import Stream
from support.paged_engines import GREEDY, assert_of_the_model, paged, run, simple

LONG = [n % 61 for n in range(40)]


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_the_last_token_arrives_with_the_end(monkeypatch):
    deltas = []
    monkeypatch.setattr(Stream, "_notify", lambda stream: deltas.append(stream._next()))  # the fastest of readers
    engine = paged()
    engine.submit(LONG, GREEDY)
    run(engine)
    assert [len(delta.tokens) for delta in deltas] == [1] * 8
    assert [delta.finish_reason for delta in deltas] == [None] * 7 + ["length"]


def test_a_thread_reads_tokens_as_they_come():
    engine = paged()
    engine.start()
    (stream,) = engine.submit(LONG, GREEDY)
    deltas = list(stream)
    output = stream.result()
    assert [t.id for d in deltas for t in d.tokens] == output.token_ids == simple(engine.model, LONG).token_ids
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == output.finish_reason == "length"
    engine.close()


def test_coroutines_read_tokens_as_they_come():
    engine = paged()
    engine.start()

    async def read(prompt):
        (stream,) = engine.submit(prompt, GREEDY)
        return [token.id async for delta in stream for token in delta.tokens]

    async def main():
        return await asyncio.gather(*(read(LONG[n:]) for n in range(5)))

    assert asyncio.run(main()) == [simple(engine.model, LONG[n:]).token_ids for n in range(5)]
    engine.close()


def test_a_result_is_waited_for_as_long_as_one_likes():
    engine = paged()
    (stream,) = engine.submit(LONG, GREEDY)
    with pytest.raises(TimeoutError):
        stream.result(0.01)
    run(engine)
    assert stream.result(0.01).finish_reason == "length"


def test_a_reader_whose_loop_is_gone_stops_nothing():
    engine = paged()

    async def leave():
        (stream,) = engine.submit(LONG, GREEDY)
        reader = stream.__aiter__()
        waiting = asyncio.ensure_future(reader.__anext__())
        await asyncio.sleep(0)
        waiting.cancel()
        return stream, reader  # kept, so that it is not closed before its loop

    stream, _reader = asyncio.run(leave())
    run(engine)
    assert stream.result(0).finish_reason == "length"


def test_threads_share_an_engine():
    engine, outputs = paged(max_running=3), {}
    engine.start()

    def ask(number):
        (stream,) = engine.submit(LONG[number:], GREEDY)
        outputs[number] = stream.result(60).token_ids

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    assert engine.generate([[1, 2]], GREEDY)[0].token_ids == simple(engine.model, [1, 2]).token_ids
    for thread in threads:
        thread.join()
    assert outputs == {n: simple(engine.model, LONG[n:]).token_ids for n in range(8)}
    engine.close()


# ---- cancelling, limits, ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_request_can_be_cancelled_in_every_state(steps, overlap):
    """In the inbox, in the queue, while its prompt is computed, while it is decoded."""
    engine = paged(max_batch_tokens=30, max_running=1, overlap=overlap)
    streams = [*engine.submit(LONG, GREEDY), *engine.submit(LONG, GREEDY)]
    for _ in range(steps):
        engine.step()
    for stream in streams:
        stream.cancel()
    run(engine)
    assert [stream.result(0).finish_reason for stream in streams] == ["abort"] * 2
    engine.check()
    engine.flush()
    assert engine.stats().free_pages == engine.stats().pages
    streams[0].cancel()  # no effect on one that is done
    assert engine.generate([LONG], GREEDY)[0].token_ids == simple(engine.model, LONG).token_ids


def test_the_queue_is_bounded_for_requests_and_not_for_lists():
    engine = paged(max_waiting=3, max_running=1)
    streams = [engine.submit([1, n], GREEDY)[0] for n in range(3)]
    with pytest.raises(QueueFullError, match="max_waiting=3"):
        engine.submit([1], GREEDY)
    with pytest.raises(ConfigError, match=r"n=4.*max_waiting=3"):
        engine.submit([1], replace(GREEDY, n=4))
    run(engine)
    assert all(stream.done for stream in streams)
    assert len(engine.generate([[n] for n in range(9)], GREEDY)) == 9


def test_what_can_never_fit_is_refused():
    engine = paged(cache_tokens=24)
    assert len(engine.generate([[1] * 16], GREEDY)[0].token_ids) == 8
    with pytest.raises(ConfigError, match=r"max_new_tokens=8.*24 tokens"):
        engine.submit([1] * 17, GREEDY)
    with pytest.raises(ConfigError, match="cache_mb"):
        PagedEngine(PagedEngineConfig(cache_mb=1, page_size=16384), small_model())


def test_closing_ends_what_runs_and_refuses_what_comes():
    engine = paged()
    engine.start()
    streams = [engine.submit(LONG, replace(GREEDY, max_new_tokens=80))[0] for _ in range(4)]
    engine.close()
    assert {stream.result(5).finish_reason for stream in streams} <= {"abort", "length"}
    assert not engine.alive
    for call in (lambda: engine.submit([1], GREEDY), engine.flush):
        with pytest.raises(ClosedError):
            call()
    engine.close()


# ---- prefixes --------------------------------------------------------------------------------------------------------


def test_a_prefix_is_computed_once():
    engine = paged()
    (first,) = engine.generate([LONG], replace(GREEDY, max_new_tokens=9))
    (again,) = engine.generate([LONG], GREEDY)
    (turn,) = engine.generate([[*LONG, *first.token_ids, 5]], GREEDY)
    assert (first.cached_tokens, again.cached_tokens, turn.cached_tokens) == (0, 36, 48)  # one token is always computed
    assert again.token_ids == first.token_ids[:8]
    assert turn.token_ids == simple(engine.model, [*LONG, *first.token_ids, 5]).token_ids
    engine.flush()
    assert engine.generate([LONG], GREEDY)[0].cached_tokens == 0
    off = paged(prefix_cache=False)
    assert [off.generate([LONG], GREEDY)[0].cached_tokens for _ in range(2)] == [0, 0]
    assert off.stats().prefix_reuse == "off: engine.prefix_cache=false"
    assert off.stats().free_pages == off.stats().pages


def test_requests_that_come_together_share_too():
    """Of five that begin alike one computes, whether they are one request's sequences or not."""
    engine = paged(max_batch_tokens=64)
    outputs = engine.generate([LONG, [*LONG, 1]], [replace(GREEDY, n=4), GREEDY])
    assert sorted(output.cached_tokens for output in outputs) == [0, 36, 36, 36, 40]
    assert [o.token_ids for o in outputs[:4]] == [simple(engine.model, LONG).token_ids] * 4


def test_prompt_log_probs_are_computed_behind_a_known_prefix_too():
    engine = paged(max_batch_tokens=64)
    params = replace(GREEDY, prompt_logprobs=True, top_logprobs=2)
    engine.generate([LONG], GREEDY)
    (output,) = engine.generate([LONG], params)
    wanted = simple(engine.model, LONG, params)
    assert output.prompt_logprobs == pytest.approx(wanted.prompt_logprobs, abs=1e-5)
    assert output.cached_tokens == 0


def test_the_second_tier_brings_prefixes_back(tmp_path):
    engine = paged(cache_tokens=64, tier_mb=1, tier_dir=str(tmp_path), max_batch_tokens=64)
    wanted = engine.generate([LONG], GREEDY)[0]
    others = [[n] * 50 for n in range(1, 4)]
    engine.generate(others, GREEDY)  # pushes it out
    (back,) = engine.generate([LONG], GREEDY)
    assert back.token_ids == wanted.token_ids
    assert back.cached_tokens == 36
    assert engine.stats().restored_pages >= 9
    engine.generate(others, GREEDY)
    (file,) = tmp_path.iterdir()
    file.write_bytes(bytes(file.stat().st_size))  # what does not have its checksum is computed again
    (again,) = engine.generate([LONG], GREEDY)
    assert again.token_ids == wanted.token_ids
    assert again.cached_tokens == 0
    engine.check()
    engine.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="tier_dir"):
        paged(tier_mb=1, tier_dir=str(tmp_path / "nowhere"))


# ---- who runs when ---------------------------------------------------------------------------------------------------


def test_prompts_are_cut_and_share_steps_with_decoded_tokens():
    engine = paged(max_batch_tokens=12, max_running=4, overlap=False)
    seen, schedule = [], engine.scheduler.schedule

    def watch(drafting):
        segments = schedule(drafting)
        seen.append([(segment.length, segment.samples) for segment in segments])
        return segments

    engine.scheduler.schedule = watch
    engine.generate([[1, 2, 3], LONG], GREEDY)
    assert max(sum(length for length, _ in step) for step in seen) == 12
    assert [(1, True), (11, False)] in seen


def test_priority_goes_first_and_takes_the_place_of_lower_ones():
    engine = paged(max_running=1, overlap=False)
    order = []
    streams = {name: engine.submit(LONG, GREEDY, priority=p)[0] for name, p in (("low", 0), ("mid", 1))}
    while any(not stream.done for stream in streams.values()):
        engine.step()
        if len(order) == 0 and engine.stats().steps == 3 and "high" not in streams:
            streams["high"] = engine.submit([7] * 9, GREEDY, priority=2)[0]
        order += [name for name, stream in streams.items() if stream.done and name not in order]
    assert order == ["high", "mid", "low"]
    assert engine.stats().preemptions == 1
    assert streams["mid"].result().token_ids == simple(engine.model, LONG).token_ids


def test_owners_take_turns():
    """One request of another owner does not wait for a hundred that were there before."""
    engine = paged(max_running=2, overlap=False)
    flood = [engine.submit([1, n % 60], GREEDY, owner="flood")[0] for n in range(100)]
    engine.step()
    (single,) = engine.submit([3], GREEDY, owner="single")
    while not single.done:
        engine.step()
    assert sum(stream.done for stream in flood) < 10
    run(engine)
    assert all(stream.done for stream in flood)


def test_a_newcomer_has_no_claim_to_what_others_had_before():
    engine = paged(max_running=1, overlap=False)
    engine.generate([[n] for n in range(20)], GREEDY)
    burst = [engine.submit([1, n], GREEDY, owner="new")[0] for n in range(20)]
    (single,) = engine.submit([3], GREEDY)
    while not single.done:
        engine.step()
    assert sum(stream.done for stream in burst) <= 3


def test_nobody_waits_for_ever():
    """However many requests of higher priority come, one of low priority is served."""
    engine = paged(max_running=1, priority_tokens=50, overlap=False)
    (low,) = engine.submit([3], GREEDY, owner="low")
    for number in range(100):
        engine.submit([1, number % 60], GREEDY, priority=1, owner="high")
        engine.step()
        if low.done:
            break
    assert low.done


def test_sequences_that_do_not_fit_together_take_turns():
    engine = paged(cache_tokens=60, max_running=4)
    prompts = [[n] * 20 for n in range(1, 5)]
    params = replace(GREEDY, max_new_tokens=36)
    outputs = engine.generate(prompts, params)
    assert engine.stats().preemptions > 0
    assert [o.token_ids for o in outputs] == [simple(engine.model, p, params).token_ids for p in prompts]
    engine.check()


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [True, False])
def test_a_failed_step_fails_its_requests_and_nothing_else(monkeypatch, overlap):
    engine = paged(overlap=overlap, max_running=2, max_batch_tokens=12)
    wanted = simple(engine.model, LONG).token_ids
    streams = [engine.submit([*LONG, n], GREEDY)[0] for n in range(3)]
    engine.step()
    original, calls = engine.model.embed, iter(range(1000))

    def fail(*args):
        if next(calls) == 0:
            raise MemoryError("no memory for this step")
        return original(*args)

    monkeypatch.setattr(engine.model, "embed", fail)
    run(engine)
    with pytest.raises(MemoryError):
        streams[0].result(0)
    assert streams[2].result(0).finish_reason == "length"
    engine.check()
    (output,) = engine.generate([LONG], GREEDY)
    assert output.token_ids == wanted
    assert_of_the_model(engine.model, LONG, output)


def test_logits_that_are_not_finite_fail_their_own_request():
    model = small_model()
    model.model.embed_tokens.weight.data[9] = float("nan")
    engine = paged(model)
    bad, good = engine.submit([*LONG, 9], GREEDY)[0], engine.submit([63, 62], GREEDY)[0]
    run(engine)
    with pytest.raises(CheckpointError, match="not finite"):
        bad.result(0)
    assert len(good.result(0).token_ids) == 8
    damaged = [*LONG[:20], 9, *LONG[20:]]
    with pytest.raises(CheckpointError, match="not finite"):
        engine.generate([damaged, [1]], GREEDY)
    model.model.embed_tokens.weight.data[9] = 0.0
    assert_of_the_model(model, damaged, engine.generate([damaged], GREEDY)[0])  # no damaged entry was kept
    engine.check()


@pytest.mark.parametrize("method", ["allowed", "accept"])
def test_a_grammar_that_raises_fails_its_own_request(monkeypatch, method):
    class Broken(CountsDown):
        pass

    def explode(self, *args):
        raise ValueError("too hard")

    monkeypatch.setattr(Broken, method, explode)
    engine = paged()
    broken = engine.submit(LONG, replace(GREEDY, matcher=Broken))[0]
    fine = engine.submit(LONG, replace(GREEDY, matcher=CountsDown))[0]
    run(engine)
    with pytest.raises(ValueError, match="too hard"):
        broken.result(0)
    assert [t % 4 for t in fine.result(0).token_ids] == [3, 2, 1, 0]
    engine.check()


def test_a_fault_of_the_scheduler_leaves_nobody_waiting(monkeypatch):
    engine = paged()
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    monkeypatch.setattr(engine.scheduler, "schedule", lambda: 1 / 0)
    engine.start()
    with pytest.raises((ZeroDivisionError, ClosedError)):
        engine.submit(LONG, GREEDY)[0].result(10)
    with pytest.raises(ClosedError):
        engine.submit(LONG, GREEDY)


def test_damage_is_found():
    engine = paged()
    engine.generate([LONG], GREEDY)
    engine.check(checksums=True)
    engine.check(checksums=True)
    page = next(engine.scheduler.tree.nodes()).page
    next(iter(engine.store.layers[0].entries.values()))[page * 4] += 1
    with pytest.raises(IntegrityError, match=f"page {page} is shared and has changed"):
        engine.check(checksums=True)
    engine.scheduler.pages.take(1)
    with pytest.raises(IntegrityError, match="belongs to nobody"):
        engine.check()


# ---- time ------------------------------------------------------------------------------------------------------------


def overlaps(engine):
    steps = engine.trace.spans("step")
    return sum(any(s.start < p.start and p.end < s.end for s in steps) for p in engine.trace.spans("prepare"))


def test_the_next_step_is_prepared_while_one_is_computed(monkeypatch, tmp_path):
    outputs = {}
    for overlap in (True, False):
        engine = paged(overlap=overlap)
        original = engine.model.embed

        def slow(*args, engine=engine, original=original, overlap=overlap):
            """Computes as a larger model, without this thread, until the next step is prepared, if it ever is."""
            prepared, end = len(engine.trace.spans("prepare")), time.monotonic() + (0.3 if overlap else 0.01)
            while time.monotonic() < end and len(engine.trace.spans("prepare")) == prepared:
                time.sleep(0.01)
            return original(*args)

        monkeypatch.setattr(engine.model, "embed", slow)
        stop = simple(engine.model, LONG).token_ids[2]  # a row too many is computed after it, and dropped
        outputs[overlap] = engine.generate(
            [LONG, [1, 2], LONG], [GREEDY, GREEDY, replace(GREEDY, stop_token_ids=(stop,))]
        )
        assert (overlaps(engine) >= 5) is overlap
        names = {span.name: span.thread for span in engine.trace.spans()}
        assert (names["prepare"] != names["step"]) is overlap
        assert len(engine.trace.gaps()) == engine.stats().steps - 1
        assert all(gap >= 0 for gap in engine.trace.gaps())
        engine.trace.save(tmp_path / "trace.json")
        assert '"name": "hand out"' in (tmp_path / "trace.json").read_text()
    for one, other in zip(outputs[True], outputs[False], strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)  # the row too many changes the step's shape
    assert outputs[True][2].finish_reason == "stop"


@pytest.mark.parametrize(("threads", "cores", "device", "wanted"), [
    (1, 2, "cpu", True), (2, 2, "cpu", False), (2, 2, "cuda", True), (1, 1, "cpu", False),
])  # fmt: skip
def test_steps_overlap_by_themselves_where_a_core_is_free(threads, cores, device, wanted, monkeypatch):
    monkeypatch.setattr(driver.torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(driver, "allowed_cores", lambda: cores)
    assert driver.overlaps(PagedEngineConfig(), torch.device(device)) is wanted
    assert driver.overlaps(PagedEngineConfig(overlap=not wanted), torch.device(device)) is not wanted
