"""Latents and index keys in int8: what a cache of them costs, holds and gives back."""

import pytest
import torch

from arcforge_attention import latent_records
from arcforge_attention.configs import DsaConfig, MlaConfig
from arcforge_attention.dsa import DSA
from arcforge_attention.mla import MLA
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.ops import reference
from arcforge_core.ops.dispatch import Ops, default_ops
from arcforge_core.ops.quant import to_records
from arcforge_core.testing.small_models import small_config

SIZES = {"kv_lora_rank": 32, "index_head_dim": 16, "index_topk": 12, "qk_rope_head_dim": 8, "q_lora_rank": 32}
BOTH = DsaConfig(index_cache="int8", latent_cache="int8")


def model(attention, ops=None, **changes):
    torch.manual_seed(0)
    return build_model(small_config(**{**SIZES, **changes}), attention, ops or default_ops()).eval()


@torch.no_grad()
def hidden(made, tokens_T, cuts, shuffled=False):
    cache = made.new_cache([len(tokens_T)] * 2, page_size=4)
    if shuffled:
        order = torch.randperm(cache.pages_NP.numel(), generator=torch.Generator().manual_seed(2))
        cache.pages_NP = order.view_as(cache.pages_NP)
    parts = [made.hidden(part, cache.batch([0], [len(part)]), cache).hidden_TD for part in tokens_T.split(cuts)]
    return torch.cat(parts), cache


def test_an_entry_is_rotated_rounded_and_given_back():
    entry_TC = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    entry_TC[:, 3] *= 30.0
    rows = latent_records.to_entries(entry_TC, 32, reference.hadamard, to_records)
    assert rows.shape == (5, latent_records.width(32, 8)) == (5, 32 + 4 + 16)
    again_TC = latent_records.from_entries(rows, 32, reference.hadamard, torch.float32)
    assert torch.equal(again_TC[:, 32:], entry_TC[:, 32:].bfloat16().float())
    turned_TC = reference.hadamard(entry_TC[:, :32])
    step_T1 = turned_TC.abs().amax(-1, keepdim=True) / 127
    assert ((reference.hadamard(again_TC[:, :32]) - turned_TC).abs() <= 0.5 * step_T1 * 1.001).all()


def test_the_cache_takes_fewer_bytes():
    """With GLM-5's sizes 644 bytes of a latent instead of 2,304 of fp32, and 132 of an index key instead of 512."""
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
    wide, narrow = (DSA(config, small_config(**sizes), 0).cache_spec() for config in (DsaConfig(), BOTH))
    assert [entry.num_bytes(torch.float32) for entry in wide] == [2304, 512]
    assert [entry.num_bytes(torch.float32) for entry in narrow] == [644, 132]
    cache = model(BOTH).new_cache([64])
    held = sum(x.numel() * x.element_size() for layer in cache.layers for x in layer.entries.values())
    assert held == 2 * 64 * (32 + 4 + 2 * 8 + 16 + 4)


@pytest.mark.parametrize(
    "attention", [MlaConfig(latent_cache="int8"), DsaConfig(latent_cache="int8"), BOTH], ids=["mla", "dsa", "both"]
)
@pytest.mark.parametrize("cuts", [(40,), (20, 1, 1, 18), (13, *[1] * 27)], ids=["whole", "chunks", "decoded"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_what_is_selected_and_attended_to_does_not_depend_on_cuts(attention, cuts, shuffled):
    tokens_T = torch.arange(40).remainder(37)
    made = model(attention)
    wanted, _ = hidden(made, tokens_T, (40,))
    got, cache = hidden(made, tokens_T, cuts, shuffled)
    assert cache.layers[0].entries["latent"].dtype == torch.int8
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


def test_in_deterministic_mode_to_the_last_bit():
    tokens_T = torch.arange(40).remainder(37)
    made = model(BOTH, Ops(None, deterministic=True))
    wanted, _ = hidden(made, tokens_T, (40,))
    for cuts in ((20, 1, 1, 18), (13, *[1] * 27)):
        assert torch.equal(hidden(made, tokens_T, cuts, shuffled=True)[0], wanted)


def test_outputs_stay_near_those_of_a_wide_cache():
    tokens_T = torch.arange(40).remainder(37)
    every = {"num_experts_per_tok": 4}  # no choice may flip
    wanted, _ = hidden(model(MlaConfig(), **every), tokens_T, (20, 1, 1, 18))
    got, _ = hidden(model(MlaConfig(latent_cache="int8"), **every), tokens_T, (20, 1, 1, 18))
    assert 1e-5 < float((got - wanted).norm() / wanted.norm()) < 0.05


def test_without_a_cache_nothing_is_rounded():
    tokens_T, batch = torch.arange(40).remainder(37), SequenceBatch.build([40])
    with torch.no_grad():
        wanted, got = (model(config).hidden(tokens_T, batch).hidden_TD for config in (DsaConfig(), BOTH))
    assert torch.equal(got, wanted)


def test_sizes_that_cannot_be_rotated_are_refused():
    with pytest.raises(ConfigError, match=r"kv_lora_rank=24.*must be a power of two: attention.latent_cache=int8"):
        MLA.check(MlaConfig(latent_cache="int8"), small_config(kv_lora_rank=24))
    with pytest.raises(ConfigError, match=r"kv_lora_rank=24"):
        DSA.check(BOTH, small_config(kv_lora_rank=24))
    with pytest.raises(ConfigError, match=r"index_head_dim=12.*index_cache=int8 rotates index keys"):
        DSA.check(DsaConfig(index_cache="int8"), small_config(index_head_dim=12))
    with pytest.raises(ConfigError, match=r"latent_cache='int4': must be one of auto, int8"):
        MlaConfig(latent_cache="int4")
