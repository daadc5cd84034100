"""Attention over selected keys."""

import torch

from arcforge_attention.configs import DsaConfig
from arcforge_attention.dsa.attend import attend
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.testing.attention_suite import build_layer, close, inputs, rope
from arcforge_core.testing.small_models import small_config

MODEL = small_config(index_topk=4)


def test_all_visible_keys_give_dense_attention():
    layer, batch = build_layer(DsaConfig(), MODEL), SequenceBatch.build([9])
    x_TD, tables, group = inputs(9, MODEL), rope(batch, MODEL), batch.plan.prompt
    q_THK = layer.queries(layer.query_latent(x_TD), tables)
    kv_SC = layer.entries(x_TD, tables)
    every_TK = torch.arange(9).expand(9, 9)
    every_TK = torch.where(every_TK <= torch.arange(9)[:, None], every_TK, -1)
    out_THV = attend(layer, q_THK, kv_SC, every_TK, group)
    close(out_THV, layer.dense(q_THK, kv_SC, batch, group), 1e-5)


def test_keys_that_are_not_selected_do_not_matter():
    layer, batch = build_layer(DsaConfig(), MODEL), SequenceBatch.build([6])
    x_TD, tables, group = inputs(6, MODEL), rope(batch, MODEL), batch.plan.prompt
    q_THK = layer.queries(layer.query_latent(x_TD), tables)
    kv_SC = layer.entries(x_TD, tables)
    only_first_TK = torch.zeros(6, 1, dtype=torch.int64)
    before = attend(layer, q_THK, kv_SC, only_first_TK, group)
    kv_SC = torch.cat([kv_SC[:1], kv_SC[1:] + 1.0])
    assert torch.equal(before, attend(layer, q_THK, kv_SC, only_first_TK, group))
