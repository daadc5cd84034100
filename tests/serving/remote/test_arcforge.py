"""``engine=arcforge``: what `submit` is given arrives, weights go there, and what a server does wrong is an error."""

import json
import socket
import threading

import pytest
import torch

from arcforge_core.contracts.engine import PartialUpdateError, SamplingParams, UnfinishedUpdateError
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.generation.weights import checksum
from arcforge_core.testing.engine_suite import flipped
from arcforge_core.testing.serving_engine_suite import until
from arcforge_core.testing.small_models import small_model
from arcforge_serving.configs import ArcforgeEngineConfig, PagedEngineConfig
from arcforge_serving.engine.errors import RemoteTimeoutError, TurnedAwayError
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.remote.arcforge import ArcforgeEngine
from support.clocks import MovedClock

PARAMS = SamplingParams(max_new_tokens=4, temperature=0.0)


def test_what_submit_is_given_arrives(ours, state, monkeypatch):
    seen, submit = [], state.engine.submit

    def spy(prompt, params, **given):
        seen.append((list(prompt), params, given))
        return submit(prompt, params, **given)

    monkeypatch.setattr(state.engine, "submit", spy)
    params = SamplingParams(
        3, 0.7, stop_token_ids=(5,), seed=2**62 + 1, top_logprobs=2, sampled_logprobs=True,
    )  # fmt: skip
    other = SamplingParams(3, 0.7, 0.9, 8, 0.01, presence_penalty=2.5, repetition_penalty=1.5, logit_bias={3: -200.0})
    engine = ours()
    given = {"priority": 3, "owner": "me", "salt": "team", "session": "rollout-7"}
    engine.submit([1, 2], params, **given)[0].result(60)
    engine.submit([1, 2], other)[0].result(60)
    assert seen[0] == ([1, 2], params, given)
    assert seen[1][1] == other
    assert seen[1][2]["session"] == "" and seen[1][2]["salt"] == ""


def test_log_probs_of_the_sampled_distribution(ours, state):
    params = SamplingParams(8, 0.5, seed=1, sampled_logprobs=True)
    found, wanted = ours().submit([1, 2], params)[0].result(60), state.engine.generate([[1, 2]], params)[0]
    assert (found.token_ids, found.weight_versions) == (wanted.token_ids, wanted.weight_versions)
    assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)


@pytest.mark.parametrize("stream", [True, False])
def test_the_experts_of_its_tokens(ours, state, monkeypatch, stream):
    params = SamplingParams(8, seed=1, experts_from=1)
    with pytest.raises(ConfigError, match=r"experts_from.*needs engine\.record_experts=true"):
        ours(stream=stream).submit([1, 2], params)[0].result(60)
    engine = PagedEngine(PagedEngineConfig(record_experts=True), small_model())
    monkeypatch.setattr(state, "engine", engine)
    wanted = engine.generate([[1, 2]], params)[0].experts
    engine.start()
    found = ours(stream=stream).submit([1, 2], params)[0].result(60).experts
    engine.close()
    assert found.dtype == wanted.dtype and (found == wanted).all() and found.shape == (8, 1, 2)


def test_cached_tokens_and_figures(ours):
    engine, prompt = ours(), list(range(2, 42))
    engine.submit(prompt, PARAMS)[0].result(60)
    assert engine.submit(prompt, PARAMS)[0].result(60).cached_tokens == 32
    engine.flush()
    assert engine.submit(prompt, PARAMS)[0].result(60).cached_tokens == 0
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (120, 32, 12)
    assert (stats.pages, stats.page_size, stats.prefix_reuse) == (256, 16, "on")


def test_limits_are_the_servers(ours, state):
    assert ours().limits == state.engine.limits


def test_a_request_that_the_server_refuses(ours, model):
    with pytest.raises(ConfigError, match="max_new_tokens"):
        ours().submit([1] * 120, SamplingParams(max_new_tokens=20))


def test_logits_that_are_not_finite(ours, model):
    engine = ours()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    for stream in (engine.submit([1, 2], PARAMS)[0], ours(stream=False).submit([1, 2], PARAMS)[0]):
        with pytest.raises(CheckpointError, match="not finite"):
            stream.result(60)


def test_another_key(ours, monkeypatch):
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", "not-an-admin-key")
    with pytest.raises(ConfigError, match=r"engine\.url.*ARCFORGE_ENGINE_KEY"):
        ours()


def test_a_queue_that_is_full(ours, state):
    engine = ours(retries=0)
    engine.pause()
    object.__setattr__(state.engine.config, "max_waiting", 1)
    first = engine.submit([1], PARAMS)[0]
    until(lambda: engine.stats().waiting == 1)
    with pytest.raises(TurnedAwayError, match="too many requests wait"):
        engine.submit([2], PARAMS, owner="").pop().result(60)
    engine.resume()
    assert first.result(60).finish_reason == "length"


# ---- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [False, True])
def test_weights_are_uploaded_or_read_from_a_folder(ours, state, model, tmp_path, folder):
    engine = ours(weights_dir=str(tmp_path) if folder else None)
    for version in (3, 4):
        weights = flipped(model)
        engine.update_weights(weights, version=version, checksum=checksum(weights))
        assert engine.weight_version == state.engine.weight_version == version
        assert engine.submit([1, 2], PARAMS)[0].result(60).weight_versions == [(version, 4)]
        assert checksum(model.state_dict()) == checksum(weights)
    assert [path.name for path in tmp_path.iterdir()] == (["version-4"] if folder else [])


def test_an_engine_that_is_made_later_knows_the_version(ours, model):
    ours().update_weights(flipped(model), version=5)
    assert ours().weight_version == 5


def test_a_version_that_the_server_has_passed(ours, state, model):
    engine = ours()
    state.engine.update_weights(flipped(model), version=9)
    with pytest.raises(CheckpointError, match=r"weight update 1.*above the current version, 9"):
        engine.update_weights(flipped(model))
    assert engine.weight_version == 0 and state.engine.weight_version == 9


def answer_with(engine, monkeypatch, reply):
    """Has uploads of an engine end with an answer or an error."""
    upload = engine._client.upload

    def replaced(*args, **query):
        upload(*args, **query)
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(engine._client, "upload", replaced)


def test_an_update_whose_answer_is_lost_is_asked_about(ours, model, monkeypatch):
    engine = ours()
    answer_with(engine, monkeypatch, TurnedAwayError("gone"))
    engine.update_weights(flipped(model))
    assert engine.weight_version == 1


def test_an_update_that_was_lost_leaves_the_version_known(ours, state, model, monkeypatch):
    engine = ours()
    state.engine.update_weights(flipped(model), version=2)
    monkeypatch.setattr(engine._client, "upload", lambda *args, **query: (_ for _ in ()).throw(TurnedAwayError("gone")))
    with pytest.raises(CheckpointError, match="weight update 5: gone; it has version 2"):
        engine.update_weights(flipped(model), version=5)
    assert engine.weight_version == 2


def test_an_update_that_hangs_has_a_limit_and_may_be_given_again(ours, state, model, monkeypatch):
    engine, free, update = ours(update_seconds=600), threading.Event(), state.engine.update_weights
    clock = MovedClock(engine._client.loop)

    def hangs(*args, **given):
        clock.move(601 * (not free.is_set()))
        free.wait(60)
        update(*args, **given)

    monkeypatch.setattr(state.engine, "update_weights", hangs)
    late = r"weight update 1: .*took longer than engine\.update_seconds=600; it has version 0"
    with pytest.raises(UnfinishedUpdateError, match=late):
        engine.update_weights(flipped(model))
    with pytest.raises(CheckpointError, match="an update is in progress"):
        engine.update_weights(flipped(model))
    free.set()
    until(lambda: state.engine.weight_version == 1)
    engine.refresh()
    engine.update_weights(flipped(model))
    assert engine.weight_version == 2


def test_a_server_that_is_silent_is_not_alive():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = ArcforgeEngineConfig(url=f"http://127.0.0.1:{silent.getsockname()[1]}", answer_seconds=0.2)
        with pytest.raises(RemoteTimeoutError, match=r"/v1/rl/status .*longer than engine\.answer_seconds=0\.2"):
            ArcforgeEngine(config, None)


def test_weights_that_one_of_two_engines_refuses(ours, model, monkeypatch):
    engine = ours()
    answer_with(engine, monkeypatch, {"weight_version": 1, "refused": {"1": "507 no room"}})
    with pytest.raises(PartialUpdateError, match=r"weight update 1 .*engine 1: 507 no room") as caught:
        engine.update_weights(flipped(model))
    assert (caught.value.version, caught.value.refused) == (1, {"1": "507 no room"})
    assert engine.weight_version == 1


def test_no_server():
    with pytest.raises(ConfigError, match=r"engine\.url='http://127\.0\.0\.1:9': cannot be reached"):
        ArcforgeEngine(ArcforgeEngineConfig(url="http://127.0.0.1:9", retries=0), None)


def test_the_route_over_http(ours, state):
    """Unknown fields, prompts that are too long and ids that the model does not have are refused with their name."""
    engine = ours()
    for body, said in (
        ({"prompt": [1], "max_new_tokens": 2, "best": 1}, "best"),
        ({"prompt": [64], "max_new_tokens": 2}, "prompt"),
        ({"prompt": [1] * 127, "max_new_tokens": 2}, "max_tokens"),
        ({"prompt": [1], "max_new_tokens": 2, "logit_bias": {"x": 1.0}}, "logit_bias"),
        ({"prompt": [1], "max_new_tokens": 2, "temperature": -1.0}, "temperature"),
    ):
        with pytest.raises(ConfigError, match=f"^{said}="):
            engine._client.post("/v1/rl/generate", body)
    reply = engine._client.post("/v1/rl/generate", {"prompt": [1], "max_new_tokens": 2, "seed": 3})
    assert json.loads(json.dumps(reply))["weight_versions"] == [[0, 2]]
