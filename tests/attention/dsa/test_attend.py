"""Attention over selected keys."""

from dataclasses import replace

import pytest
import torch

from arcforge_attention.configs import DsaConfig
from arcforge_attention.dsa import DSA
from arcforge_attention.entries import Entries
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.meta import meta_device
from arcforge_core.testing.attention_inputs import selection
from arcforge_core.testing.attention_suite import build_layer, close, inputs, rope
from arcforge_core.testing.small_models import small_config

MODEL = small_config(index_topk=4)


def test_all_visible_keys_give_dense_attention():
    layer, batch = build_layer(DsaConfig(), MODEL), SequenceBatch.build([9])
    x_TD, tables, group = inputs(9, MODEL), rope(batch, MODEL), batch.plan.prompt
    q_THK = layer.queries(layer.query_latent(x_TD), tables)
    entries = Entries.store(batch, None, latent=layer.entries(x_TD, tables))
    every_TK = torch.arange(9).expand(9, 9)
    every_TK = torch.where(every_TK <= torch.arange(9)[:, None], every_TK, -1)
    out_THV = layer.attend_selected(q_THK, entries, every_TK, group)
    close(out_THV, layer.dense(q_THK, entries, group), 1e-5)


def test_keys_that_are_not_selected_do_not_matter():
    layer, batch = build_layer(DsaConfig(), MODEL), SequenceBatch.build([6])
    x_TD, tables, group = inputs(6, MODEL), rope(batch, MODEL), batch.plan.prompt
    q_THK = layer.queries(layer.query_latent(x_TD), tables)
    kv_SC = layer.entries(x_TD, tables)
    only_first_TK = torch.zeros(6, 1, dtype=torch.int64)
    before, after = (
        layer.attend_selected(q_THK, Entries.store(batch, None, latent=x_SC), only_first_TK, group)
        for x_SC in (kv_SC, torch.cat([kv_SC[:1], kv_SC[1:] + 1.0]))
    )
    assert torch.equal(before, after)


def test_both_forms_are_the_same_function():
    layer = build_layer(DsaConfig(), MODEL)
    batch = SequenceBatch.build([11, 3, 9])
    x_TD, tables, group = inputs(23, MODEL), rope(batch, MODEL), batch.plan.prompt
    q_THK = layer.queries(layer.query_latent(x_TD), tables)
    entries = Entries.store(batch, None, latent=layer.entries(x_TD, tables))
    indices_TK = selection(torch.Generator().manual_seed(0), [11, 3, 9], [11, 3, 9], 4)
    outs, weights = [], (layer.kv_b_proj.weight, layer.q_b_proj.weight, layer.kv_a_proj_with_mqa.weight)
    for chosen in ("absorbed", "expanded"):
        layer.form, layer.absorbed = chosen, chosen == "absorbed"
        assert layer.expands(group) == (chosen == "expanded")
        out_THV = layer.attend_selected(q_THK, entries, indices_TK, group)
        grads = torch.autograd.grad(out_THV.square().sum(), weights, retain_graph=True)
        outs.append((out_THV, *grads))
    for absorbed, expanded in zip(*outs, strict=True):
        close(absorbed, expanded, 1e-4)


def glm5_layer():
    """A layer of GLM-5's sizes without memory."""
    sizes = {
        "hidden_size": 64, "num_attention_heads": 64, "q_lora_rank": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64, "v_head_dim": 256, "index_topk": 2048, "index_head_dim": 128,
        "max_position_embeddings": 1 << 18,
    }  # fmt: skip
    with meta_device():
        return DSA(DsaConfig(), replace(small_config(), **sizes), 0)


@pytest.mark.parametrize(("tokens", "expanded"), [(3000, True), (7500, True), (7540, False), (60_000, False)])
def test_prompts_are_expanded_up_to_the_length_where_gathering_takes_fewer_operations(tokens, expanded):
    """T^2 / 2 * (256 + 256) equals (2048^2 / 2 + (T - 2048) * 2048) * (2 * 512 + 64) at T = 7519."""
    assert glm5_layer().expands(SequenceBatch.build([tokens]).plan.prompt) == expanded


def test_decoded_tokens_always_gather():
    batch = SequenceBatch.build([1, 4], [3000, 2500], write_slots_T=torch.zeros(5), pages_NP=torch.zeros(2, 1))
    assert not glm5_layer().expands(batch.plan.decode)
