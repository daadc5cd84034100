"""The conformance suite of engines that are shared by many callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.contracts.serving_engine import ServingEngine, TokenStream
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.engine_suite import GREEDY, PROMPTS, SAMPLED, EngineSuite, assert_same, flipped, texts

LONG = replace(GREEDY, max_new_tokens=60)
SECONDS = 60.0
"""A result that takes longer is missing."""


class ServingEngineSuite(EngineSuite):
    """Conformance of a `ServingEngine`, which is an `Engine` too.

    A subclass provides the fixtures of `EngineSuite`; the fixture ``engine`` is started, and closed afterwards.
    """

    def test_a_started_engine_is_alive(self, engine: ServingEngine) -> None:
        assert engine.started
        assert engine.alive
        assert not engine.paused

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED, replace(SAMPLED, top_logprobs=2)])
    def test_streams_have_what_generate_returns(self, engine: ServingEngine, params: SamplingParams) -> None:
        """The deltas of a stream together are its output, and requests together equal each of them alone."""
        wanted = engine.generate(PROMPTS, params)
        streams = [engine.submit(prompt, params)[0] for prompt in PROMPTS]
        for stream, output in zip(streams, wanted, strict=True):
            found = stream.result(SECONDS)
            assert_same(found, output)
            assert read(stream) == (found.token_ids, found.logprobs, found.finish_reason)

    def test_one_stream_for_each_sequence(self, engine: ServingEngine) -> None:
        """Sequence i has the seed of the request plus i."""
        params = replace(SAMPLED, n=3)
        streams = engine.submit(PROMPTS[1], params)
        assert texts([stream.result(SECONDS) for stream in streams]) == texts(engine.generate([PROMPTS[1]], params))

    def test_sessions_change_no_output(self, engine: ServingEngine) -> None:
        """A session says where a request goes, not what comes of it."""
        (stream,) = engine.submit(PROMPTS[1], GREEDY, session="rollout 7/ä")
        assert_same(stream.result(SECONDS), engine.generate([PROMPTS[1]], GREEDY)[0])

    @pytest.mark.parametrize("bad", [[], [-1], [10**6]])
    def test_a_bad_request_fails_alone(self, engine: ServingEngine, bad: list[int]) -> None:
        """It is refused when it is submitted."""
        (stream,) = engine.submit(PROMPTS[1], GREEDY)
        with pytest.raises(ConfigError, match="prompt"):
            engine.submit(bad, GREEDY)
        assert stream.result(SECONDS).token_ids == engine.generate([PROMPTS[1]], GREEDY)[0].token_ids

    def test_a_cancelled_sequence_ends_with_abort(self, engine: ServingEngine) -> None:
        """Without a token, too; its version is the present one. Others continue."""
        wanted = engine.generate([PROMPTS[1]], LONG)[0]
        engine.pause()
        (ended,), (kept,) = engine.submit(PROMPTS[1], LONG), engine.submit(PROMPTS[1], LONG)
        ended.cancel()
        ended.cancel()
        output = ended.result(SECONDS)
        assert (output.token_ids, output.logprobs, output.finish_reason) == ([], [], "abort")
        assert (output.weight_version, output.weight_versions) == (0, [(0, 0)])
        assert read(ended) == ([], [], "abort")
        engine.resume()
        assert_same(kept.result(SECONDS), wanted)

    def test_cancelling_keeps_the_tokens_so_far(self, engine: ServingEngine) -> None:
        """A sequence may be cancelled at any moment; cancelling one that has ended has no effect."""
        wanted = engine.generate([PROMPTS[1]], LONG)[0]
        (stream,) = engine.submit(PROMPTS[1], LONG)
        in_time(lambda: read(stream, most=1))
        stream.cancel()
        output = stream.result(SECONDS)
        count = len(output.token_ids)
        assert output.token_ids == wanted.token_ids[:count]
        assert output.logprobs == pytest.approx(wanted.logprobs[:count], abs=1e-5)
        assert output.finish_reason == ("length" if count == 60 else "abort")
        stream.cancel()
        assert stream.result(SECONDS) == output

    def test_abort_ends_all(self, engine: ServingEngine) -> None:
        """Later requests are not concerned."""
        engine.pause()
        streams = [engine.submit(prompt, LONG)[0] for prompt in PROMPTS]
        in_time(engine.abort)
        assert {stream.result(SECONDS).finish_reason for stream in streams} == {"abort"}
        engine.resume()
        assert engine.submit(PROMPTS[0], GREEDY)[0].result(SECONDS).finish_reason == "length"

    def test_requests_wait_while_paused(self, engine: ServingEngine) -> None:
        wanted = engine.generate([PROMPTS[1]], GREEDY)[0]
        engine.pause()
        until(lambda: engine.paused)
        assert engine.alive
        (stream,) = engine.submit(PROMPTS[1], GREEDY)
        with pytest.raises(TimeoutError):
            stream.result(0.3)
        engine.resume()
        until(lambda: not engine.paused)
        assert_same(stream.result(SECONDS), wanted)

    @pytest.mark.parametrize(("mode", "reasons"), [("wait", {"length"}), ("abort", {"abort", "length"})])
    def test_pauses_end_requests_first(self, engine: ServingEngine, mode: str, reasons: set[str]) -> None:
        """``wait`` finishes them, ``abort`` ends them: nothing runs afterwards."""
        streams = [engine.submit(prompt, LONG)[0] for prompt in PROMPTS]
        in_time(lambda: read(streams[-1], most=1))
        in_time(lambda: engine.pause(mode))
        assert {stream.result(SECONDS).finish_reason for stream in streams} <= reasons
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.paused) == (0, 0, True)
        engine.resume()

    def test_other_modes_are_refused(self, engine: ServingEngine) -> None:
        with pytest.raises(ConfigError, match=r"mode='later'.*abort"):
            engine.pause("later")

    def test_kept_requests_continue_with_new_weights(self, engine: ServingEngine, model: CausalLM) -> None:
        """Each token has the version that sampled it."""
        (stream,) = engine.submit(PROMPTS[1], LONG)
        in_time(lambda: read(stream, most=1))
        engine.pause("keep")
        engine.update_weights(flipped(model), version=3)
        engine.resume()
        output = stream.result(SECONDS)
        assert sum(count for _, count in output.weight_versions) == len(output.token_ids) == 60
        versions = [version for version, _ in output.weight_versions]
        assert versions in ([0], [0, 3], [3])
        assert output.oldest_version == versions[0]
        assert engine.submit(PROMPTS[1], GREEDY)[0].result(SECONDS).weight_versions == [(3, 12)]

    def test_flushing_changes_no_output(self, engine: ServingEngine) -> None:
        wanted = engine.generate(PROMPTS, GREEDY)
        engine.flush()
        for found, output in zip(engine.generate(PROMPTS, GREEDY), wanted, strict=True):
            assert_same(found, output)

    def test_stop_functions_end_streams(self, engine: ServingEngine) -> None:
        (plain,) = engine.generate([PROMPTS[1]], GREEDY)
        (stream,) = engine.submit(PROMPTS[1], replace(GREEDY, should_stop=lambda ids: len(ids) == 5))
        output = stream.result(SECONDS)
        assert (output.token_ids, output.finish_reason) == (plain.token_ids[:5], "stop")
        assert read(stream) == (output.token_ids, output.logprobs, "stop")

    def test_stats_and_limits(self, engine: ServingEngine, model: CausalLM) -> None:
        """Waiting requests are counted; the limits are those of the model, or less."""
        engine.pause()
        streams = [engine.submit(prompt, GREEDY)[0] for prompt in PROMPTS]
        until(lambda: engine.stats().running + engine.stats().waiting == len(PROMPTS))
        assert (engine.stats().paused, engine.stats().weight_version) == (True, 0)
        engine.resume()
        for stream in streams:
            stream.result(SECONDS)
        assert engine.limits.vocabulary == model.config.vocab_size
        assert 64 <= engine.limits.tokens <= model.config.max_position_embeddings

    def test_closing_ends_requests(self, engine: ServingEngine) -> None:
        """A closed engine refuses further ones."""
        engine.pause()
        (stream,) = engine.submit(PROMPTS[0], GREEDY)
        in_time(engine.close)
        assert stream.result(SECONDS).finish_reason == "abort"
        assert not engine.alive
        with pytest.raises(ArcforgeError, match="closed"):
            engine.submit(PROMPTS[0], GREEDY)


def read(stream: TokenStream, most: int | None = None) -> tuple[list[int], list[float], str | None]:
    """Returns ids, log-probs and the finish reason of a stream, up to `most` deltas."""

    async def work() -> tuple[list[int], list[float], str | None]:
        ids: list[int] = []
        logprobs: list[float] = []
        reason, deltas = None, 0
        async for delta in stream:
            ids += [token.id for token in delta.tokens]
            logprobs += [token.logprob for token in delta.tokens]
            reason, deltas = delta.finish_reason, deltas + 1
            if deltas == most:
                break
        return ids, logprobs, reason

    return asyncio.run(work())


def in_time(work: Callable[[], object]) -> None:
    """Runs something in a thread; fails if it does not end."""
    errors: list[BaseException] = []

    def caught() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=caught, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), f"it has not ended after {SECONDS:g} s"
    if errors:
        raise errors[0]


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition; fails if it does not come true."""
    for _ in range(int(SECONDS / 0.02)):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError(f"it is not so after {SECONDS:g} s")
