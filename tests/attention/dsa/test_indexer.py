"""The indexer's formula, the place of its rotated part, and its precision."""

import torch

from arcforge_attention.dsa.indexer import Indexer
from arcforge_core.model.rope import rope_tables
from arcforge_core.ops import reference
from arcforge_core.testing.small_models import small_config

MODEL = small_config(index_n_heads=5, index_head_dim=12, qk_rope_head_dim=4)


def make_indexer():
    torch.manual_seed(0)
    return Indexer(MODEL)


def test_rotates_the_first_part_only_and_interleaved():
    indexer, q_TQ = make_indexer(), torch.randn(7, 16)
    rope = rope_tables(torch.arange(7), 4, MODEL.rope_theta)
    plain_TIK = indexer.wq_b(q_TQ).view(7, 5, 12)
    rotated_TIK = indexer.queries(q_TQ, rope)
    assert torch.equal(rotated_TIK[..., 4:], plain_TIK[..., 4:])
    pairs = torch.view_as_complex(plain_TIK[..., :4].reshape(7, 5, 2, 2).contiguous())
    wanted = torch.view_as_real(pairs * torch.complex(*rope)[:, None]).flatten(-2)
    torch.testing.assert_close(rotated_TIK[..., :4], wanted)


def test_keys_are_layer_normed_with_bias():
    indexer, x_TD = make_indexer(), torch.randn(7, 32)
    with torch.no_grad():
        indexer.k_norm.bias.fill_(3.0)
    still = torch.ones(7, 2), torch.zeros(7, 2)
    keys_TK = indexer.keys(x_TD, still)
    k = indexer.wk(x_TD)
    wanted = (k - k.mean(-1, keepdim=True)) / (k.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt() + 3.0
    torch.testing.assert_close(keys_TK, wanted)


def test_weights_are_float32_and_hold_both_scales():
    indexer, x_TD = make_indexer(), torch.randn(3, 32).bfloat16()
    w_TI = indexer.weights(x_TD)
    assert w_TI.dtype == torch.float32
    torch.testing.assert_close(w_TI, x_TD.float() @ indexer.weights_proj.weight.T * 5**-0.5 * 12**-0.5)


def test_scaling_a_query_leaves_its_selection_unchanged():
    torch.manual_seed(1)
    q_TID, k_SD, w_TI = torch.randn(20, 5, 12), torch.randn(20, 12), torch.randn(20, 5)
    cu = torch.tensor([0, 20], dtype=torch.int32)
    scale_T = torch.rand(20) * 9 + 0.1
    before, after = (reference.indexer_topk(q, k_SD, w_TI, cu, cu, 6) for q in (q_TID, q_TID * scale_T[:, None, None]))
    assert torch.equal(before, after)
