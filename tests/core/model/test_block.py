import pytest
import torch

from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.block import Block
from arcforge_core.model.cache import PagedCache
from arcforge_core.model.init import init_weights
from arcforge_core.model.moe import DenseMLP, MoE
from arcforge_core.model.rope import rope_tables
from arcforge_core.testing.small_models import small_config


def build(layer_index: int) -> tuple[Block, tuple[torch.Tensor, SequenceBatch, tuple[torch.Tensor, torch.Tensor]]]:
    config = small_config()
    block = Block(config, ReferenceAttentionConfig(), layer_index)
    init_weights(block, config)
    for norm in (block.input_layernorm, block.post_attention_layernorm):
        torch.nn.init.normal_(norm.weight)  # so that the two can be told apart
    batch = SequenceBatch.build([3, 4])
    rope = rope_tables(batch.positions_T, config.qk_rope_head_dim, config.rope_theta)
    return block, (torch.randn(7, config.hidden_size), batch, rope)


def test_leading_layers_are_dense_and_the_others_mixtures():
    assert isinstance(build(0)[0].mlp, DenseMLP)
    assert isinstance(build(1)[0].mlp, MoE)


def test_a_dense_layer_says_nothing_of_experts():
    block, args = build(0)
    out = block(*args)
    assert out.aux_losses == {} and out.load_E is None


def test_a_mixture_layer_reports_balance_and_load():
    block, args = build(1)
    out = block(*args)
    assert set(out.aux_losses) == {"balance"} and out.aux_losses["balance"].ndim == 0
    assert out.load_E.sum() == 7 * 2


def test_generation_is_spared_balance_and_load():
    block, (x_TD, _, rope) = build(1)
    cache = PagedCache([block.self_attn.cache_spec()], [3, 4], dtype=torch.float32)
    out = block(x_TD, cache.batch([0, 1], [3, 4]), rope, cache.layers[0])
    assert out.aux_losses == {} and out.load_E is None
    torch.testing.assert_close(out.x_TD, block(x_TD, SequenceBatch.build([3, 4]), rope).x_TD)


@pytest.mark.parametrize("layer_index", [0, 1])
def test_both_halves_are_added_to_their_pre_normed_input(layer_index):
    block, (x_TD, batch, rope) = build(layer_index)
    middle_TD = x_TD + block.self_attn(block.input_layernorm(x_TD), batch, None, rope=rope).out_TD
    normed_TD = block.post_attention_layernorm(middle_TD)
    added_TD = block.mlp(normed_TD) if layer_index == 0 else block.mlp(normed_TD, batch)[0]
    torch.testing.assert_close(block(x_TD, batch, rope).x_TD, middle_TD + added_TD)


def test_a_layer_whose_outputs_are_zero_is_the_identity():
    block, (x_TD, batch, rope) = build(1)
    torch.nn.init.zeros_(block.self_attn.o_proj.weight)
    torch.nn.init.zeros_(block.mlp.experts.down_proj)
    torch.nn.init.zeros_(block.mlp.shared_experts.down_proj.weight)
    assert torch.equal(block(x_TD, batch, rope).x_TD, x_TD)


def test_losses_of_the_attention_are_kept_beside_the_balance_loss(monkeypatch):
    block, args = build(1)
    attend = block.self_attn.forward

    def with_loss(*args, **kwargs):
        return type(attend(*args, **kwargs))(attend(*args, **kwargs).out_TD, {"indexer_kl": torch.tensor(3.0)})

    monkeypatch.setattr(block.self_attn, "forward", with_loss)
    losses = block(*args).aux_losses
    assert set(losses) == {"indexer_kl", "balance"} and losses["indexer_kl"] == 3.0
