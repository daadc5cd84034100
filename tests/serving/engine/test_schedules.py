"""Whatever shares a batch, however prompts are cut, prefixes shared and sequences preempted: outputs are the same bits.

The models compute deterministically, so that "the same" needs no tolerance.
"""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.testing.engine_suite import EngineSuite
from arcforge_core.testing.small_models import small_config
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine
from support.marks import nightly_case
from support.serving_load import RandomLoad, make_cases

attentions = pytest.importorskip("arcforge_attention.configs")
LONGEST = 44
VARIANTS = {
    "mla": attentions.MlaConfig(),
    "dsa": attentions.DsaConfig(),
    "dsa shared": attentions.DsaConfig(indexer_types=["full", "shared"]),
    "gqa": attentions.GqaConfig(),
    "swa": attentions.SwaConfig(window=5, pattern="SF"),
    "gdn": attentions.GdnConfig(pattern="LF"),
}


def build(attention, seed=0, dense=True):
    torch.manual_seed(seed)
    config = small_config(first_k_dense_replace=2 if dense else 0)
    return build_model(config, attention, Ops(select_hardware("torch_cpu"), deterministic=True)).eval()


@pytest.fixture(scope="module")
def prepared():
    """Returns a function that gives a variant's model, states and cases, each made once."""
    made = {}

    def get(name):
        if name not in made:
            models = [build(VARIANTS[name], seed, dense=name != "dsa") for seed in (0, 1)]
            model, states = models[0], [{n: t.clone() for n, t in m.state_dict().items()} for m in models]
            made[name] = model, states, make_cases(model, states, 10, LONGEST)
        return made[name]

    return get


@st.composite
def engine_configs(draw, drafts=True):
    page = draw(st.sampled_from([1, 3, 4, 16]))
    running = draw(st.integers(1, 6))
    reuses = draw(st.sampled_from([True, True, False]))
    return PagedEngineConfig(
        page_size=page,
        cache_tokens=draw(st.integers(-(-LONGEST // page) * page, 4 * LONGEST)),
        max_running=running,
        max_batch_tokens=draw(st.integers(running, 40)),
        prefix_cache=reuses,
        tier_mb=draw(st.sampled_from([0, 1])) if reuses else 0,
        priority_tokens=draw(st.sampled_from([0, 50, 65536])),
        overlap=draw(st.booleans()),
        draft_tokens=draw(st.sampled_from([0, 1, 3, 5])) if drafts else None,
        drafting=draw(st.sampled_from(["always", "auto"])),
    )


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=2)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_random_schedules_give_what_the_simple_engine_gives(prepared, name, data, seed):
    config = data.draw(engine_configs(drafts=name != "gdn"))
    model, states, cases = prepared(name)
    model.load_state_dict(states[0])
    engine = PagedEngine(config, model)
    load = RandomLoad(engine, cases, states, random.Random(seed), limit=10)
    for _ in range(40):
        load.act()
        engine.step()
    while engine.step():
        pass
    load.collect()
    assert not load.open
    engine.check()
    engine.flush()
    assert engine.stats().free_pages == engine.stats().pages
    engine.close()


class TestSmallPages(EngineSuite):
    """The whole suite with prefixes found, prompts cut and sequences preempted; the suite wants equal bits of some."""

    @pytest.fixture
    def model(self):
        return build(VARIANTS["gqa"])

    @pytest.fixture(params=[(True, 0), nightly_case((False, 0)), (False, 3)], ids=["overlap", "in turns", "drafts"])
    def engine(self, model, request):
        overlap, drafts = request.param
        config = PagedEngineConfig(
            page_size=2, cache_tokens=130, max_running=5, max_batch_tokens=7, overlap=overlap, draft_tokens=drafts,
            drafting="always",
        )  # fmt: skip
        return PagedEngine(config, model)


@pytest.mark.parametrize("name", ["gdn", "swa"])
def test_prefixes_are_shared_where_pages_hold_all_of_them(name):
    """Not by models that keep a state per sequence: that is said in the statistics."""
    engine = PagedEngine(PagedEngineConfig(page_size=4), build(VARIANTS[name]))
    params = SamplingParams(max_new_tokens=4, temperature=0.0)
    outputs = [engine.generate([[*range(20)]], params)[0] for _ in range(2)]
    assert outputs[0].token_ids == outputs[1].token_ids
    assert outputs[1].cached_tokens == (16 if name == "swa" else 0)
    assert engine.stats().prefix_reuse.startswith("on" if name == "swa" else "off: the model keeps a state")
