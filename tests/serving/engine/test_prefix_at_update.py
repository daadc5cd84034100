"""Which prefixes are found after a weight update: none, or those of requests and sessions that began before it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.testing.engine_suite import continuation_logits
from arcforge_core.testing.small_models import small_model
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine

PROMPT = [n % 60 for n in range(40)]
PARAMS = SamplingParams(max_new_tokens=4, temperature=0.0)


def made(**options):
    usual = {"cache_tokens": 2048, "page_size": 8, "overlap": False}
    return PagedEngine(PagedEngineConfig(**usual | options), small_model())


def ask(engine, prompt=PROMPT, session="", params=PARAMS, salt=""):
    (stream,) = engine.submit(prompt, params, session=session, salt=salt)
    while not stream.done:
        engine.step()
    engine.check(checksums=True)
    return stream.result()


def other_weights(engine, factor=1.3):
    state = {n: v * factor if "norm" in n else v.clone() for n, v in engine.model.state_dict().items()}
    engine.update_weights(state)


def present_logprobs(engine, prompt, output):
    """The log-probs of the present weights alone."""
    logprobs_SV = continuation_logits(engine.model, prompt, output.token_ids).log_softmax(-1)
    return logprobs_SV.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize(("mode", "found"), [("drop", 0), ("keep", 40)])
def test_a_session_that_began_before_an_update(mode, found):
    engine = made(prefix_at_update=mode)
    first = ask(engine, session="s")
    other_weights(engine)
    longer = [*PROMPT, *first.token_ids, 7]
    second = ask(engine, longer, session="s")
    assert second.cached_tokens == found and second.weight_versions == [(1, 4)]
    assert (second.logprobs == pytest.approx(present_logprobs(engine, longer, second), abs=1e-5)) == (mode == "drop")
    third = ask(engine, [*longer, *second.token_ids, 8], session="s")
    assert third.cached_tokens == 48, "its own entries are found in both modes"


@pytest.mark.parametrize("session", ["", "new"])
@pytest.mark.parametrize("mode", ["drop", "keep"])
def test_a_request_that_begins_afterwards_reads_nothing_of_before(mode, session):
    engine = made(prefix_at_update=mode)
    ask(engine, session="old")
    ask(engine)
    other_weights(engine)
    assert ask(engine, session="old").cached_tokens == (32 if mode == "keep" else 0)
    output = ask(engine, session=session)
    assert output.cached_tokens == (0 if mode == "keep" else 32), "with drop, what `old` computed again is present"
    assert output.logprobs == pytest.approx(present_logprobs(engine, PROMPT, output), abs=1e-5)
    again = ask(engine, session=session)
    assert again.cached_tokens == 32
    assert again.logprobs == pytest.approx(present_logprobs(engine, PROMPT, again), abs=1e-5)


def test_a_session_of_another_salt_is_another_session():
    engine = made(prefix_at_update="keep")
    ask(engine, session="s", salt="a")
    other_weights(engine)
    assert ask(engine, session="s", salt="b").cached_tokens == 0
    assert ask(engine, session="s", salt="a").cached_tokens == 32


def test_sessions_of_three_generations():
    engine = made(prefix_at_update="keep")
    for session in "abc":
        ask(engine, session=session)
        other_weights(engine)
    assert [ask(engine, session=session).cached_tokens for session in "abcd"] == [32, 32, 32, 0]


@pytest.mark.parametrize("mode", ["drop", "keep"])
def test_a_running_request_that_is_preempted(mode):
    """With keep it finds its prefix again, of both weights; with drop it is computed by the new ones."""
    engine = made(prefix_at_update=mode)
    (stream,) = engine.submit(PROMPT, SamplingParams(max_new_tokens=20, temperature=0.0))
    while len(stream._tokens) < 10:
        engine.step()
    other_weights(engine)
    engine.preempt(1)
    before = engine.trace.spans("step")[-1].figures["tokens"]
    engine.step()
    computed = engine.trace.spans("step")[-1].figures["tokens"]
    assert before == 1 and (computed < 16 if mode == "keep" else computed > 40)
    while not stream.done:
        engine.step()
    engine.check()
    assert [version for version, _ in stream.result().weight_versions] == [0, 1]


def test_flushing_drops_what_was_kept():
    engine = made(prefix_at_update="keep")
    ask(engine, session="s")
    other_weights(engine)
    engine.flush()
    engine.check()
    assert engine.stats().cached_pages == 0
    assert ask(engine, session="s").cached_tokens == 0


def test_kept_pages_make_room():
    """Older generations are evicted like everything else."""
    engine = made(prefix_at_update="keep", cache_tokens=160)
    for number in range(12):
        assert ask(engine, [number, *PROMPT[1:]], session=f"{number}").finish_reason == "length"
        other_weights(engine, 1.01)
    assert engine.stats().evicted_pages > 20
    assert ask(engine, session="0").cached_tokens == 0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdu"), st.integers(0, 2)), min_size=2, max_size=14), st.booleans())
def test_no_later_session_reads_earlier_entries(events, tier):
    """``u`` is an update; a session reads entries of sessions that began under the same weights, and no others."""
    engine = made(prefix_at_update="keep", cache_tokens=192, tier_mb=1 if tier else 0)
    generation, began, version = {}, {}, 0
    for name, which in events:
        if name == "u":
            other_weights(engine, 1.05)
            version += 1
            continue
        prompt = [which, *PROMPT[1:]]
        began.setdefault(name, version)
        known = (began[name], which) in generation
        output = ask(engine, prompt, session=name)
        assert known or output.cached_tokens == 0
        if began[name] == version and generation.get((version, which), version) == version:
            assert output.logprobs == pytest.approx(present_logprobs(engine, prompt, output), abs=1e-4)
        generation[began[name], which] = version
    engine.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"prefix_at_update": "salt"}, "drop"), ({"prefix_at_update": "keep", "prefix_cache": False}, "prefix_cache")],
)
def test_options_are_checked(options, said):
    with pytest.raises(ConfigError, match=rf"engine\.prefix_at_update=.*{said}"):
        PagedEngineConfig(**options)
