"""Engines over quantised weights: the same tokens whatever the engine and the batch, updates, refusals."""

from dataclasses import replace

import pytest
import torch

from arcforge_core import save_pretrained
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.generation.weights import checksum
from arcforge_core.model.adapt.quantised import MODES, quantised_state
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.engine_suite import continuation_logits, texts
from arcforge_core.testing.small_models import small_config, small_model
from arcforge_serving import Engine
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine
from support.marks import nightly_case

SIZES = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "q_lora_rank": 32, "v_head_dim": 32}
GREEDY = SamplingParams(max_new_tokens=6, temperature=0.0)
PROMPTS = [[1], [2, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12], [n % 61 for n in range(22)], [14, 15]]


def model(seed=0):
    return small_model(seed, **SIZES)


@pytest.mark.parametrize("variant", ["DsaConfig", "GqaConfig"])
@pytest.mark.parametrize("mode", MODES)
def test_both_engines_give_the_same_bits_in_any_batch(mode, variant):
    """Cut prompts, shared prefixes, batch mates and preemption change nothing, in deterministic mode."""
    attention = getattr(pytest.importorskip("arcforge_attention.configs"), variant)()

    def deterministic():
        torch.manual_seed(0)
        config = small_config(**{**SIZES, "head_dim": 32, "qk_rope_head_dim": 4})
        return build_model(config, attention, Ops(None, deterministic=True)).eval()

    alone = SimpleEngine(SimpleEngineConfig(weights=mode), deterministic(), batch_size=1)
    options = {"weights": mode, "page_size": 4, "max_batch_tokens": 7, "max_running": 4, "cache_tokens": 80}
    paged = PagedEngine(PagedEngineConfig(**options), deterministic())
    params = [replace(GREEDY, temperature=float(n % 2), seed=n) for n in range(len(PROMPTS))]
    wanted = alone.generate(PROMPTS, params)
    for order in (1, -1):
        got = paged.generate(PROMPTS[::order], params[::order])[::order]
        assert texts(got) == texts(wanted)
        assert [o.logprobs for o in got] == [o.logprobs for o in wanted]
    assert paged.stats().cached_tokens > 0


@pytest.mark.parametrize(
    ("mode", "variant"),
    [
        (mode, variant) if n == m else nightly_case(mode, variant)
        for n, mode in enumerate(MODES)
        for m, variant in enumerate(("DsaConfig", "MlaConfig", "GqaConfig"))
    ],
)
def test_drafts_leave_the_same_bits(mode, variant):
    """Greedy and by seed, whether prompts are found in the cache or not; the MTP module stays wide."""
    attention = getattr(pytest.importorskip("arcforge_attention.configs"), variant)()

    def deterministic():
        torch.manual_seed(0)
        config = small_config(**{**SIZES, "head_dim": 32, "qk_rope_head_dim": 4, "vocab_size": 8})
        return build_model(config, attention, Ops(None, deterministic=True)).eval()

    prompts = [[n % 8 for n in range(length)] for length in (1, 7, 17, 17)]
    params = [SamplingParams(max_new_tokens=12, temperature=0.9 * (n % 2), seed=n) for n in range(len(prompts))]
    wanted = SimpleEngine(SimpleEngineConfig(weights=mode), deterministic()).generate(prompts, params)
    drafting = {"draft_tokens": 3, "drafting": "always", "max_batch_tokens": 9, "max_running": 3}
    paged = PagedEngine(PagedEngineConfig(weights=mode, page_size=4, **drafting), deterministic())
    for least in (0, 12):
        got = paged.generate(prompts, params)
        assert texts(got) == texts(wanted)
        assert [o.logprobs for o in got] == [o.logprobs for o in wanted]
        assert got[2].cached_tokens >= least
    stats = paged.stats()
    assert stats.drafts > stats.accepted_by_position[0] > 0
    paged.check()


@pytest.mark.parametrize("mode", MODES)
def test_drafts_of_the_fast_kernels_give_the_same_tokens(mode):
    """Recorded steps and rows of several tokens of a sequence included."""
    params = SamplingParams(max_new_tokens=16, temperature=0.0)
    plain = PagedEngine(PagedEngineConfig(weights=mode, page_size=4), model()).generate(PROMPTS, params)
    options = {"weights": mode, "page_size": 4, "draft_tokens": 3, "drafting": "always"}
    paged = PagedEngine(PagedEngineConfig(**options), model())
    for _ in range(2):
        assert texts(paged.generate(PROMPTS, params)) == texts(plain)
    assert paged.stats().drafts > 0


def test_logprobs_are_the_quantised_models():
    engine = PagedEngine(PagedEngineConfig(weights="int4", page_size=4), model())
    for prompt, output in zip(PROMPTS, engine.generate(PROMPTS, GREEDY), strict=True):
        logprobs_SV = continuation_logits(engine.model, prompt, output.token_ids).log_softmax(-1)
        wanted_S = logprobs_SV.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(output.logprobs), wanted_S, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_an_update_gives_the_engine_of_the_new_weights(mode, tmp_path):
    """From tensors or from a folder, with the checksum of what was sent; a refused one leaves the old weights."""
    state = model(seed=1).state_dict()
    wanted = PagedEngine(PagedEngineConfig(weights=mode), model(seed=1)).generate(PROMPTS, GREEDY)
    engine = PagedEngine(PagedEngineConfig(weights=mode), model())
    before = engine.generate(PROMPTS, GREEDY)
    with pytest.raises(CheckpointError, match="checksum"):
        engine.update_weights(state, checksum="0" * 64)
    assert texts(engine.generate(PROMPTS, GREEDY)) == texts(before)
    engine.update_weights(state, version=4, checksum=checksum(state))
    got = engine.generate(PROMPTS, GREEDY)
    assert texts(got) == texts(wanted) != texts(before)
    assert {o.weight_version for o in got} == {4}
    save_pretrained(model(), tmp_path / "old")
    engine.update_weights_from(tmp_path / "old")
    assert texts(engine.generate(PROMPTS, GREEDY)) == texts(before)


def test_a_checkpoint_is_quantised_when_it_is_loaded(tmp_path):
    save_pretrained(model(), tmp_path / "model")
    engine = Engine(tmp_path / "model", PagedEngineConfig(weights="w4a8"))
    assert quantised_state(engine.model).mode == "w4a8"
    assert len(engine.generate(PROMPTS, GREEDY)) == len(PROMPTS)


def test_a_format_that_does_not_fit_is_refused_before_loading(tmp_path, monkeypatch):
    save_pretrained(small_model(), tmp_path / "model")
    monkeypatch.setattr("arcforge_serving.engine.facade.load_pretrained", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(ConfigError, match=r"q_b_proj.weight: rows of 16 must be a multiple of the group size 32"):
        Engine(tmp_path / "model", PagedEngineConfig(weights="int4"))
    with pytest.raises(ConfigError, match=r"engine.weights='int8': must be one of none, w8a8, w4a8, int4"):
        PagedEngineConfig(weights="int8")
