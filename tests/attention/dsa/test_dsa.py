"""DSA: dense below top-k, transformers' result above it, an indexer that the loss does not reach."""

import pytest
import torch

from arcforge_attention.configs import DsaConfig, MlaConfig
from arcforge_attention.dsa import DSA
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.ops import reference
from arcforge_core.testing.attention_suite import build_layer, close, inputs, new_cache, run
from arcforge_core.testing.small_models import small_config

MODEL = small_config(num_attention_heads=4, index_n_heads=32, index_head_dim=16, index_topk=12)


def dense_twin(dsa):
    mla = build_layer(MlaConfig(), MODEL)
    mla.load_state_dict({k: v for k, v in dsa.state_dict().items() if not k.startswith("indexer.")})
    return mla


def test_is_mla_bit_for_bit_up_to_topk():
    dsa = build_layer(DsaConfig(), MODEL)
    mla = dense_twin(dsa)
    x_TD, batch = inputs(25, MODEL), SequenceBatch.build([12, 1, 12])
    assert torch.equal(run(dsa, x_TD, batch, MODEL).out_TD, run(mla, x_TD, batch, MODEL).out_TD)
    caches = new_cache(dsa, [12]), new_cache(mla, [12])
    for x in x_TD[:12].split((5, 1, 6)):
        outs = [
            run(layer, x, cache.batch([0], [len(x)]), MODEL, cache).out_TD
            for layer, cache in zip((dsa, mla), caches, strict=True)
        ]
        assert torch.equal(*outs)


def test_differs_from_mla_above_topk():
    dsa = build_layer(DsaConfig(), MODEL)
    x_TD, batch = inputs(30, MODEL), SequenceBatch.build([30])
    sparse, dense = (run(layer, x_TD, batch, MODEL).out_TD for layer in (dsa, dense_twin(dsa)))
    close(sparse[:12], dense[:12])
    assert not torch.allclose(sparse[13:], dense[13:], atol=1e-3)


@pytest.mark.parametrize("tokens", [12, 40], ids=["below top-k", "above top-k"])
def test_equals_transformers_glm_moe_dsa(tokens):
    from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as hf

    config = hf.GlmMoeDsaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=1, q_lora_rank=16,
        kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=16, head_dim=4, index_n_heads=32,
        index_head_dim=16, index_topk=12, rms_norm_eps=MODEL.rms_norm_eps, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": MODEL.rope_theta},
    )  # fmt: skip
    ours, theirs = build_layer(DsaConfig(), MODEL), hf.GlmMoeDsaAttention(config, 0).eval()
    theirs.load_state_dict(ours.state_dict())
    x_TD = inputs(tokens, MODEL)
    tables = hf.GlmMoeDsaRotaryEmbedding(config)(x_TD[None], torch.arange(tokens)[None])
    mask = torch.full((tokens, tokens), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        wanted_TD = theirs(x_TD[None], tables, mask)[0][0]
    close(run(ours, x_TD, SequenceBatch.build([tokens]), MODEL).out_TD, wanted_TD, 1e-4)


def test_language_model_loss_leaves_the_indexer_alone():
    layer = build_layer(DsaConfig(), MODEL)
    run(layer, inputs(30, MODEL).requires_grad_(), SequenceBatch.build([30]), MODEL).out_TD.sum().backward()
    assert all(p.grad is None and p.requires_grad for p in layer.indexer.parameters())
    assert layer.q_a_proj.weight.grad is not None


def test_ties_are_the_same_with_and_without_a_cache():
    model = small_config(num_attention_heads=4, index_n_heads=1, index_topk=4)  # one ReLU head: most scores are 0
    layer, x_TD = build_layer(DsaConfig(), model), inputs(20, model)
    whole_TD = run(layer, x_TD, SequenceBatch.build([20]), model).out_TD
    cache = new_cache(layer, [20])
    steps = [run(layer, x, cache.batch([0], [len(x)]), model, cache).out_TD for x in x_TD.split((6, 9, 1, 1, 3))]
    close(torch.cat(steps), whole_TD, 1e-5)


def test_rotated_part_must_fit_into_an_index_head():
    with pytest.raises(ConfigError, match="index_head_dim=8") as error:
        DSA.check(DsaConfig(), small_config(qk_rope_head_dim=10, index_head_dim=8))
    assert error.value.field == "model.qk_rope_head_dim"


def test_index_key_is_cached_and_indexer_has_the_names_of_checkpoints():
    layer = build_layer(DsaConfig(), MODEL)
    assert [entry.name for entry in layer.cache_spec()] == ["latent", "index_key"]
    names = {name for name, _ in layer.indexer.named_parameters()}
    assert names == {"wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight"}


@pytest.mark.parametrize("form", ["bf16", "int8"])
@pytest.mark.parametrize("cuts", [(40,), (20, 1, 1, 18), (13, *[1] * 27)], ids=["whole", "chunks", "decoded"])
def test_index_keys_kept_in_fewer_bits_select_the_same_however_a_prompt_is_cut(cuts, form):
    dsa = build_layer(DsaConfig(index_cache=form), MODEL)
    dtype = {"bf16": torch.bfloat16, "int8": torch.int8}[form]
    x_TD, cache, seen = inputs(40, MODEL), new_cache(dsa, [40]), []
    assert cache.layers[0].entries["index_key"].dtype == dtype
    assert cache.layers[0].entries["latent"].dtype == torch.float32
    dsa.indexer_topk = lambda q, k, *rest: seen.append(k) or reference.indexer_topk(q, k, *rest)
    outs = [run(dsa, x, cache.batch([0], [len(x)]), MODEL, cache).out_TD for x in x_TD.split(cuts)]
    assert seen
    assert all(k_SD.dtype == dtype for k_SD in seen)
    whole = new_cache(dsa, [40])
    close(torch.cat(outs), run(dsa, x_TD, whole.batch([0], [40]), MODEL, whole).out_TD)


def test_topk_must_fit_into_the_context():
    with pytest.raises(ConfigError, match=r"index_topk=.*at most max_position_embeddings=128"):
        DSA.check(DsaConfig(), small_config(index_topk=129))
    with pytest.raises(ConfigError, match="index_topk"):
        small_config(index_topk=0)
    DSA.check(DsaConfig(), small_config(index_topk=128))
