"""Selection: when it is needed, what it picks, and how ties end."""

import pytest
import torch

from arcforge_attention.configs import DsaConfig
from arcforge_attention.dsa.select import needs_selection
from arcforge_attention.entries import Entries
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.testing.attention_suite import build_layer, inputs, rope
from arcforge_core.testing.small_models import small_config

MODEL = small_config(index_n_heads=3, index_topk=4)


@pytest.mark.parametrize(("lengths", "needed"), [([4, 3], False), ([2, 5], True)])
def test_selection_is_needed_beyond_topk_keys(lengths, needed):
    assert needs_selection(SequenceBatch.build(lengths).plan.prompt, 4) is needed


def selected(layer, x_TD, batch):
    q_TQ, tables = layer.query_latent(x_TD), rope(batch, MODEL)
    entries = Entries.store(batch, None, index_key=layer.indexer.keys(x_TD, tables))
    group = batch.plan.prompt
    return layer.select(layer.index_inputs(x_TD, q_TQ, entries, group, tables), group)


def test_picks_visible_keys_of_the_own_segment_in_order():
    layer, batch = build_layer(DsaConfig(), MODEL), SequenceBatch.build([9, 6])
    indices_TK = selected(layer, inputs(15, MODEL), batch)
    for token, position in enumerate(batch.positions_T.tolist()):
        chosen = [i for i in indices_TK[token].tolist() if i >= 0]
        assert chosen == sorted(set(chosen)) and len(chosen) == min(4, position + 1)
        assert max(chosen) <= position


def test_engineered_ties_pick_lower_indices():
    layer, batch = build_layer(DsaConfig(), MODEL), SequenceBatch.build([9])
    with torch.no_grad():
        layer.indexer.weights_proj.weight.zero_()  # every score is exactly 0
    indices_TK = selected(layer, inputs(9, MODEL), batch)
    assert indices_TK[8].tolist() == [0, 1, 2, 3]
    assert indices_TK[1].tolist() == [0, 1, -1, -1]
