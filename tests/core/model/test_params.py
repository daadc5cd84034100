import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from arcforge_core.config.compose import compose
from arcforge_core.config.schema import MtpConfig
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.model.build import build_model
from arcforge_core.model.params import count_parameters, training_flops_per_token
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import small_config
from arcforge_core.train.losses import Normalizers, micro_loss, plan_mtp
from support.models import model_configs, train_batch

FORMS = st.sampled_from(["mla", "gqa"])
RELEASED = 753_864_139_008
"""Values in the released GLM-5 checkpoint (spec 1.2), router biases of 76 mixture layers included."""


@pytest.fixture(scope="module")
def glm5():
    pytest.importorskip("arcforge_attention")
    return compose(["model=glm5", "optimizer=torch_adamw", "schedule=constant", "data=stdlib", "hardware=torch_cpu"])


def test_glm5_has_the_sizes_of_the_release(glm5):
    counts = count_parameters(glm5.model, glm5.attention)
    assert glm5.attention.name == "dsa"
    assert counts.total_with_mtp == RELEASED
    assert counts.total_without_mtp == 743_911_218_432
    assert counts.active == 39_881_563_392
    assert counts.cache_bytes_per_token == 78 * (512 + 64 + 128) * 2 == 109_824


def test_glm5_splits_into_parameters_and_router_biases(glm5):
    with torch.device("meta"):
        model = build_model(glm5.model, glm5.attention, Ops(None))
    buffers = sum(b.numel() for b in model.buffers())
    assert buffers == 76 * 256 == 19_456
    assert sum(p.numel() for p in model.parameters()) == RELEASED - buffers == 753_864_119_552


@pytest.mark.slow(reason="imports transformers and builds its GLM-5 on the meta device")
def test_transformers_glm5_has_the_same_backbone(glm5):
    transformers = pytest.importorskip("transformers")
    own = glm5.model
    names = (
        "vocab_size hidden_size num_hidden_layers intermediate_size moe_intermediate_size n_routed_experts "
        "num_experts_per_tok n_shared_experts num_attention_heads q_lora_rank kv_lora_rank qk_nope_head_dim "
        "qk_rope_head_dim v_head_dim index_n_heads index_head_dim index_topk"
    )
    config = transformers.GlmMoeDsaConfig(
        **{name: getattr(own, name) for name in names.split()},
        num_key_value_heads=own.num_attention_heads,
        mlp_layer_types=["dense"] * 3 + ["sparse"] * 75,
    )
    with torch.device("meta"):
        theirs = transformers.GlmMoeDsaForCausalLM(config)
        ours = build_model(own, glm5.attention, Ops(None))

    def sizes(model: torch.nn.Module) -> dict[str, torch.Size]:
        return {name: p.shape for name, p in model.state_dict().items() if not name.startswith("mtp.")}

    assert sizes(ours) == sizes(theirs)


@settings(max_examples=30)
@given(model_configs(), FORMS)
def test_counts_are_those_of_a_real_model(config, form):
    attention = ReferenceAttentionConfig(form=form)
    model, counts = build_model(config, attention, Ops(None)), count_parameters(config, attention)
    parameters = sum(p.numel() for p in model.parameters()) + sum(b.numel() for b in model.buffers())
    mtp = sum(t.numel() for t in model.mtp.state_dict().values()) if model.mtp else 0
    assert counts.total_with_mtp == parameters
    assert counts.total_without_mtp == parameters - mtp
    embedding = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    mixtures = config.num_hidden_layers - config.first_k_dense_replace
    unchosen = config.n_routed_experts - config.num_experts_per_tok
    idle = mixtures * unchosen * 3 * config.hidden_size * config.moe_intermediate_size
    assert counts.active == parameters - mtp - embedding - idle
    rows = model.new_cache([1], page_size=1)
    cached = sum(entry.numel() for layer in rows.layers for entry in layer.entries.values())
    assert counts.cache_bytes_per_token == 2 * cached


def counted_flops(model, micro, depths: int) -> int:
    plan = plan_mtp(micro, depths, 1.0)
    norm = Normalizers.of([micro], [plan], depths, lambda sums: (sums, 1.0))
    with FlopCounterMode(display=False) as counter:
        micro_loss(model, micro, plan, norm).total.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("form", ["mla", "gqa"])
@pytest.mark.parametrize("length", [2, 9])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_routed_experts": 7, "num_experts_per_tok": 3, "n_shared_experts": 2, "num_hidden_layers": 3},
        {"first_k_dense_replace": 2, "tie_word_embeddings": True, "v_head_dim": 5, "num_attention_heads": 3},
        {"first_k_dense_replace": 0, "n_shared_experts": 0, "mtp": MtpConfig(depths=3, fraction=1.0)},
    ],
)
def test_flops_are_those_that_torch_counts(changes, form, length):
    """Exactly: the naive attention computes masked pairs too, so each query counts all keys of its segment.

    No size is 1, because torch multiplies matrices of one column without a matrix product.
    """
    config = small_config(**changes)
    model = build_model(config, ReferenceAttentionConfig(form=form), Ops(None))
    micro, depths = train_batch([length], config.vocab_size), config.mtp.depths
    formula = training_flops_per_token(model, keys=length)
    main = counted_flops(model, micro, 0)
    assert formula.main * length == pytest.approx(main, rel=1e-12)
    assert formula.mtp_depth * length * depths == pytest.approx(counted_flops(model, micro, depths) - main, rel=1e-12)


def test_frozen_weights_have_no_gradient_to_compute():
    model = build_model(small_config(), ReferenceAttentionConfig(), Ops(None))
    whole = training_flops_per_token(model, keys=3)
    weight = model.model.layers[0].mlp.gate_proj.weight.requires_grad_(False)
    assert training_flops_per_token(model, keys=3).main == whole.main - 2 * weight.numel()
    model.lm_head.weight.requires_grad_(False)
    assert training_flops_per_token(model, keys=3).mtp_depth == whole.mtp_depth - 2 * model.lm_head.weight.numel()


def test_keys_of_each_query_count_as_their_mean_where_all_are_attended_to():
    model = build_model(small_config(), ReferenceAttentionConfig(), Ops(None))
    one, each = (training_flops_per_token(model, keys) for keys in (2.5, torch.tensor([1, 2, 3, 4])))
    assert (one.main, one.mtp_depth) == pytest.approx((each.main, each.mtp_depth), rel=1e-12)


def test_sparse_attention_counts_what_it_selects_and_the_selection():
    """By the definition, query by query: 20 tokens, 8 selected keys, an indexer in one of two layers."""
    configs = pytest.importorskip("arcforge_attention.configs")
    sizes = small_config(index_topk=8)
    attentions = configs.MlaConfig(), configs.DsaConfig(indexer_types=["full", "shared"])
    models = [build_model(sizes, attention, Ops(None)) for attention in attentions]
    short_T, long_T = torch.arange(1, 9), torch.arange(1, 21)
    mla, dsa = (training_flops_per_token(model, short_T) for model in models)
    assert dsa == mla  # up to top-k every key is attended to and nothing is selected
    mla, dsa = (training_flops_per_token(model, long_T) for model in models)
    pair = 3 * 2 * sizes.num_attention_heads * (sizes.qk_nope_head_dim + sizes.qk_rope_head_dim + sizes.v_head_dim)
    heads, size = sizes.index_n_heads, sizes.index_head_dim
    projections = heads * size * sizes.q_lora_rank + size * sizes.hidden_size + heads * sizes.hidden_size
    spared = selection = 0
    for keys in long_T.tolist():
        spared += pair * (keys - min(keys, 8))
        if keys > 8:
            selection += 2 * projections + 2 * heads * size * keys + 2 * heads * keys
    assert dsa.main == pytest.approx(mla.main + (selection - 2 * spared) / 20, rel=1e-12)
    assert dsa.mtp_depth == pytest.approx(mla.mtp_depth + (selection - spared) / 20, rel=1e-12)


def test_presets_have_the_sizes_that_they_promise():
    def total(preset: str) -> int:
        overrides = ["attention=reference", "optimizer=torch_adamw", "schedule=constant"]
        config = compose([f"model={preset}", *overrides, "data=stdlib", "hardware=torch_cpu"])
        return count_parameters(config.model, config.attention).total_without_mtp

    assert total("tiny") < 1_000_000
    assert 3_000_000 < total("mini") < 6_000_000
    assert 15_000_000 < total("small") < 30_000_000
    assert 28_000_000_000 < total("flash") < 32_000_000_000
