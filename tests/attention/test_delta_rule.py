"""What the linear layers share: states that begin with zeros, lengths of 1, a count of work that does not grow."""

import pytest
import torch

from arcforge_attention.configs import GdnConfig, SimpleGdnConfig
from arcforge_attention.delta_rule import l2_normed
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.build import build_model
from arcforge_core.model.params import training_flops_per_token
from arcforge_core.testing.attention_suite import build_layer, close, inputs, new_cache, run
from arcforge_core.testing.small_models import small_config

MODEL = small_config(num_attention_heads=4, num_key_value_heads=2)
VARIANTS = pytest.mark.parametrize("config", [GdnConfig(), SimpleGdnConfig()], ids=lambda c: c.name)


def test_lengths_are_one_in_fp32_whatever_the_dtype():
    x = torch.randn(5, 3, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(l2_normed(x).norm(dim=-1), torch.ones(5, 3))
    assert torch.equal(l2_normed(x.bfloat16()), l2_normed(x.bfloat16().float()).bfloat16())
    assert not l2_normed(torch.zeros(2, 4)).any()


@VARIANTS
def test_a_sequence_begins_with_zeros_where_another_one_was(config):
    layer = build_layer(config, MODEL)
    cache = new_cache(layer, [9])
    for state in cache.layers[0].states.values():
        state.fill_(3.0)
    with_cache = run(layer, inputs(9, MODEL), cache.batch([0], [9]), MODEL, cache).out_TD
    close(with_cache, run(layer, inputs(9, MODEL), SequenceBatch.build([9]), MODEL).out_TD)


@VARIANTS
def test_the_work_of_a_token_does_not_grow(config):
    model = build_model(MODEL, config)
    few, many = (training_flops_per_token(model, keys).main for keys in (10.0, 1010.0))
    assert many - few == 12 * 4 * 16 * 1000  # of the full layer
    recurrent = model.model.layers[0].self_attn.training_flops(torch.tensor([5.0], dtype=torch.float64))
    assert recurrent.tolist() == [18 * 4 * 16 * 16]
