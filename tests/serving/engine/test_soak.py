"""Thousands of requests with cancellations, preemptions, pauses and weight updates."""

import random

import pytest
import torch

from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.testing.small_models import small_config
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine
from support.serving_load import RandomLoad, make_cases

attentions = pytest.importorskip("arcforge_attention.configs")


def build(seed):
    torch.manual_seed(seed)
    config = small_config(num_hidden_layers=1, first_k_dense_replace=1)
    return build_model(config, attentions.GqaConfig(), Ops(select_hardware("torch_cpu"), deterministic=True)).eval()


@pytest.mark.slow(reason="thousands of requests")
def test_a_long_run_loses_nothing_and_gives_everything_back(tmp_path):
    model = build(0)
    states = [{name: tensor.clone() for name, tensor in build(seed).state_dict().items()} for seed in (0, 1, 2)]
    cases = make_cases(model, states, 40, 24)
    config = PagedEngineConfig(page_size=4, cache_tokens=160, max_running=12, max_batch_tokens=60, tier_mb=1)
    engine = PagedEngine(config, model)
    load = RandomLoad(engine, cases, states, random.Random(0), limit=40)
    while load.done["submit"] < 700:
        load.act()
        if load.rng.random() < 0.5:
            engine.step()
    while engine.step():
        pass
    load.collect()
    assert not load.open
    assert load.done["length"] + load.done["stop"] > 400
    assert load.done["abort"] > 30
    assert engine.weight_version > 10
    stats = engine.stats()
    assert stats.preemptions > 50
    assert stats.restored_pages > 0
    assert (stats.running, stats.waiting) == (0, 0)
    engine.check(checksums=True)
    engine.flush()
    assert engine.stats().free_pages == stats.pages
    engine.close()
