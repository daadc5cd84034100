"""IndexShare: shared layers attend to the keys of the last full one, in training, prefill, chunks and decoding."""

import pytest
import torch

from arcforge_attention.configs import DsaConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.model.params import count_parameters
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.attention_suite import close
from arcforge_core.testing.small_models import small_config

PATTERN = ["full", "shared", "shared", "full"]
TOPK = 12
SIZES = small_config(num_hidden_layers=4, num_attention_heads=4, index_n_heads=32, index_head_dim=16, index_topk=TOPK)


def build(types=PATTERN, ops=None, **changes):
    torch.manual_seed(0)
    sizes = small_config(**{**vars(SIZES), **changes})
    return build_model(sizes, DsaConfig(indexer_types=list(types)), ops).eval()


def tokens(count, seed=0):
    return torch.randint(SIZES.vocab_size, (count,), generator=torch.Generator().manual_seed(seed))


def naive_logits(model, tokens_T):
    """One sequence, query by query: masks instead of gathered keys, and a selection that only full layers renew."""
    batch, length = SequenceBatch.build([len(tokens_T)]), len(tokens_T)
    rope = model.rope(batch)
    x_TD = model.embed(tokens_T)
    for layer, kind in zip(model.model.layers, PATTERN, strict=True):
        attention, h_TD = layer.self_attn, layer.input_layernorm(x_TD)
        q_TQ = attention.query_latent(h_TD)
        if kind == "full":
            indexer = attention.indexer
            dots_TIS = torch.einsum("tik,sk->tis", indexer.queries(q_TQ, rope), indexer.keys(h_TD, rope)).relu()
            score_TS = torch.einsum("ti,tis->ts", indexer.weights(h_TD), dots_TIS)
            seen_TS = torch.zeros(length, length, dtype=torch.bool)
            for t in range(length):
                best = sorted(range(t + 1), key=lambda s: (-float(score_TS[t, s]), s))
                seen_TS[t, best[:TOPK]] = True
        latent_SC, rope_SR = attention.entries(h_TD, rope).split((attention.latent, attention.rotary), -1)
        up_SHX = attention.kv_b_proj(latent_SC).view(length, attention.heads, -1)
        k_SHK = torch.cat([up_SHX[..., : attention.nope], rope_SR[:, None].expand(-1, attention.heads, -1)], -1)
        scores_HTS = torch.einsum("thk,shk->hts", attention.queries(q_TQ, rope), k_SHK) * attention.scale
        probs_HTS = scores_HTS.masked_fill(~seen_TS, -torch.inf).softmax(-1)
        heads_THV = torch.einsum("hts,shv->thv", probs_HTS, up_SHX[..., attention.nope :])
        x_TD = x_TD + attention.o_proj(heads_THV.flatten(1))
        normed_TD = layer.post_attention_layernorm(x_TD)
        x_TD = x_TD + (layer.mlp(normed_TD) if layer is model.model.layers[0] else layer.mlp(normed_TD, batch)[0])
    return model.logits(model.model.norm(x_TD))


@torch.no_grad()
def test_equals_a_naive_reference_and_full_layers_do_not():
    model, tokens_T = build(ops=Ops(None)), tokens(40)
    wanted_TV = naive_logits(model, tokens_T)
    close(model(tokens_T[None]).logits[0], wanted_TV)
    close(build()(tokens_T[None]).logits[0], wanted_TV)  # this machine's kernels
    full = build(["full"] * 4)
    full.load_state_dict(model.state_dict(), strict=False)
    assert not torch.allclose(full(tokens_T[None]).logits[0], wanted_TV, atol=1e-2)


@torch.no_grad()
def test_up_to_topk_keys_sharing_changes_nothing():
    model, full = build(), build([])
    model.load_state_dict({k: v for k, v in full.state_dict().items() if k in model.state_dict()})
    ids_BS = tokens(TOPK)[None]
    assert torch.equal(model(ids_BS).logits, full(ids_BS).logits)


@torch.no_grad()
@pytest.mark.parametrize("steps", [(40,), (9, 20, *[1] * 11), (30, 2, 8), (1, 39)], ids=str)
def test_prefill_chunks_and_decoding_equal_one_forward(steps):
    model, tokens_T = build(), tokens(sum(steps))
    cache = model.new_cache([len(tokens_T)], page_size=4)
    parts = [model.hidden(part, cache.batch([0], [len(part)]), cache).hidden_TD for part in tokens_T.split(steps)]
    close(torch.cat(parts), model.hidden(tokens_T, SequenceBatch.build([len(tokens_T)])).hidden_TD)


@torch.no_grad()
def test_prompts_chunks_and_decoding_share_a_batch():
    model, lengths, pasts = build(), (30, 28, 9, 33), (0, 27, 8, 20)
    whole = [tokens(n, seed) for seed, n in enumerate(lengths)]
    cache = model.new_cache(list(lengths), page_size=4)
    for n, past in enumerate(pasts):
        if past:
            model.hidden(whole[n][:past], cache.batch([n], [past]), cache)
    order = (1, 3, 0, 2)
    new = [whole[n][pasts[n] :] for n in order]
    batch = cache.batch(order, [len(part) for part in new])
    assert all((batch.plan.prompt, batch.plan.decode, batch.plan.chunk)), "the test wants all three groups"
    mixed_TD = model.hidden(torch.cat(new), batch, cache).hidden_TD
    for n, out_TD in zip(order, mixed_TD.split([len(part) for part in new]), strict=True):
        alone_TD = model.hidden(whole[n], SequenceBatch.build([lengths[n]])).hidden_TD
        close(out_TD, alone_TD[pasts[n] :])


def test_packed_documents_equal_single_ones_and_checkpointing_changes_no_gradient():
    model, lengths = build(), (30, 5, 22)
    tokens_T = tokens(sum(lengths))
    direction_TD = torch.randn(sum(lengths), SIZES.hidden_size, generator=torch.Generator().manual_seed(1))

    def run(checkpointing, parts):
        model.zero_grad()
        model.activation_checkpointing = checkpointing
        outs = [model.hidden(part, SequenceBatch.build(sizes)).hidden_TD for part, sizes in parts]
        (torch.cat(outs) * direction_TD).sum().backward()
        return torch.cat(outs), [p.grad for p in model.parameters() if p.grad is not None]

    packed_TD, grads = run(False, [(tokens_T, lengths)])
    single_TD, single_grads = run(False, [(part, [len(part)]) for part in tokens_T.split(lengths)])
    again_TD, again_grads = run(True, [(tokens_T, lengths)])
    close(packed_TD, single_TD)
    for got, wanted in zip(grads, single_grads, strict=True):
        close(got, wanted, 1e-4)
    assert torch.equal(packed_TD, again_TD)
    assert len(grads) == len(again_grads) and all(map(torch.equal, grads, again_grads))
    assert not any(p.grad is not None for n, p in model.named_parameters() if ".indexer." in n)


@torch.no_grad()
@pytest.mark.parametrize("length", [TOPK, 40], ids=["up to top-k", "above top-k"])
def test_equals_transformers_glm_moe_dsa(length):
    hf = pytest.importorskip("transformers.models.glm_moe_dsa")
    names = (
        "vocab_size hidden_size num_hidden_layers intermediate_size moe_intermediate_size n_routed_experts "
        "num_experts_per_tok n_shared_experts routed_scaling_factor num_attention_heads q_lora_rank kv_lora_rank "
        "qk_nope_head_dim qk_rope_head_dim v_head_dim index_n_heads index_head_dim index_topk rms_norm_eps"
    )
    config = hf.GlmMoeDsaConfig(
        **{name: getattr(SIZES, name) for name in names.split()},
        num_key_value_heads=SIZES.num_attention_heads, indexer_types=PATTERN, attn_implementation="eager",
        mlp_layer_types=["dense", *["sparse"] * 3], n_group=1, topk_group=1, norm_topk_prob=True,
        rope_parameters={"rope_type": "default", "rope_theta": SIZES.rope_theta}, pad_token_id=None,
    )  # fmt: skip
    ours, theirs = build(), hf.GlmMoeDsaForCausalLM(config).eval()
    state = {name: value for name, value in ours.state_dict().items() if not name.startswith("mtp.")}
    theirs.load_state_dict(state)  # strict: shared layers have no indexer there either
    ids_BS = torch.stack([tokens(length, 1), tokens(length, 2)])
    wanted = theirs(ids_BS).logits
    assert float((ours(ids_BS).logits - wanted).abs().max()) <= 1e-4 and float(wanted.abs().max()) > 0.1
    greedy = theirs.generate(ids_BS, max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert torch.equal(ours.generate(ids_BS, max_new_tokens=8), greedy)


def test_shared_layers_have_no_indexer_and_no_index_key():
    model = build()
    owners = {n.split(".self_attn.")[0] for n in model.state_dict() if ".indexer." in n}
    assert owners == {"model.layers.0", "model.layers.3", "mtp"}
    cached = [[entry.name for entry in layer] for layer in model.cache_spec()]
    assert cached == [["latent", *["index_key"] * (kind == "full")] for kind in PATTERN]


def test_counts_leave_shared_indexers_out():
    full, shared = (count_parameters(SIZES, DsaConfig(indexer_types=types)) for types in ([], PATTERN))
    heads, size, hidden = SIZES.index_n_heads, SIZES.index_head_dim, SIZES.hidden_size
    indexer = heads * size * SIZES.q_lora_rank + size * hidden + 2 * size + heads * hidden
    assert full.total_with_mtp - shared.total_with_mtp == 2 * indexer
    assert full.active - shared.active == 2 * indexer
    assert full.cache_bytes_per_token - shared.cache_bytes_per_token == 2 * 2 * size


def test_a_selection_is_kept_only_for_layers_that_use_it():
    model, tokens_T = build(), tokens(20)
    handed = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda _, args, kwargs: handed.append(kwargs), with_kwargs=True)
    model.hidden(tokens_T, SequenceBatch.build([20]))
    assert [list(given) for given in handed] == [[], ["selection"], ["selection"], []]
    assert handed[1]["selection"][0] is handed[2]["selection"][0]
    assert handed[1]["selection"][0].shape == (20, TOPK)


def test_a_shared_layer_alone_says_what_it_lacks():
    model, batch = build(), SequenceBatch.build([3])
    with pytest.raises(ValueError, match="selection of the previous layer"):
        model.model.layers[1].self_attn(torch.zeros(3, SIZES.hidden_size), batch, rope=model.rope(batch))


@pytest.mark.parametrize(
    ("types", "field", "message"),
    [
        (
            ["full", "share"],
            "attention.indexer_types[1]",
            "'share': must be one of full, shared; did you mean",
        ),
        (["shared", "full"], "attention.indexer_types[0]", "must be full"),
    ],
)
def test_impossible_types_are_refused(types, field, message):
    with pytest.raises(ConfigError, match=message) as error:
        DsaConfig(indexer_types=types)
    assert error.value.field == field


@pytest.mark.parametrize("types", [["full"] * 3, ["full"] * 5])
def test_one_type_per_layer(types):
    with pytest.raises(ConfigError, match="num_hidden_layers=4") as error:
        build(types)
    assert error.value.field == "attention.indexer_types"
    assert error.value.value == types
