"""GQA against the naive reference and transformers, and its checks."""

import pytest
import torch

from arcforge_attention.configs import GqaConfig
from arcforge_attention.gqa import GQA
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.model.reference_attention import ReferenceAttention
from arcforge_core.testing.attention_suite import build_layer, close, inputs, run
from arcforge_core.testing.small_models import small_config

MODEL = small_config(num_attention_heads=6, num_key_value_heads=2, head_dim=12, qk_rope_head_dim=6)


def test_equals_the_naive_reference():
    ours, batch = build_layer(GqaConfig(), MODEL), SequenceBatch.build([9, 1, 17])
    naive = ReferenceAttention(ReferenceAttentionConfig(form="gqa"), MODEL, 0)
    naive.load_state_dict(ours.state_dict())
    close(run(ours, inputs(27, MODEL), batch, MODEL).out_TD, run(naive, inputs(27, MODEL), batch, MODEL).out_TD, 1e-5)


def half_split_rows(weight, heads):
    """Reorders the rotated rows of each head from pairs (2i, 2i+1) to halves (i, i + R/2)."""
    rotated, rest = weight.unflatten(0, (heads, -1)).split((6, 6), dim=1)
    return torch.cat([rotated[:, 0::2], rotated[:, 1::2], rest], dim=1).flatten(0, 1)


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "bias": True}], ids=["plain", "qk_norm and bias"])
def test_equals_transformers_glm4_moe(options):
    from transformers.models.glm4_moe import modeling_glm4_moe as hf

    config = hf.Glm4MoeConfig(
        hidden_size=32, num_attention_heads=6, num_key_value_heads=2, head_dim=12, rms_norm_eps=MODEL.rms_norm_eps,
        attention_bias=bool(options), use_qk_norm=bool(options), attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": MODEL.rope_theta, "partial_rotary_factor": 0.5},
    )  # fmt: skip
    ours, theirs = build_layer(GqaConfig(**options), MODEL), hf.Glm4MoeAttention(config, 0).eval()
    state = ours.state_dict()
    for name, value in state.items():
        heads = {"q_proj": 6, "k_proj": 2, "q_norm": 1, "k_norm": 1}.get(name.split(".")[0])
        state[name] = half_split_rows(value, heads) if heads else value
    theirs.load_state_dict(state)
    x_TD, tokens = inputs(15, MODEL), 15
    tables = hf.Glm4MoeRotaryEmbedding(config)(x_TD[None], torch.arange(tokens)[None])
    mask = torch.full((tokens, tokens), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        wanted_TD = theirs(x_TD[None], tables, mask)[0][0]
    close(run(ours, x_TD, SequenceBatch.build([tokens]), MODEL).out_TD, wanted_TD, 1e-4)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"num_key_value_heads": 4}, "model.num_key_value_heads"), ({"qk_rope_head_dim": 14}, "model.qk_rope_head_dim")],
)
def test_impossible_sizes_are_refused_by_name(changes, field):
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12, "qk_rope_head_dim": 6, **changes}
    with pytest.raises(ConfigError, match="must") as error:
        GQA.check(GqaConfig(), small_config(**sizes))
    assert error.value.field == field


def test_qk_norm_makes_the_scale_of_queries_irrelevant():
    layer, batch = build_layer(GqaConfig(qk_norm=True), MODEL), SequenceBatch.build([8])
    before = run(layer, inputs(8, MODEL), batch, MODEL).out_TD
    with torch.no_grad():
        layer.q_proj.weight.mul_(7.0)
    close(run(layer, inputs(8, MODEL), batch, MODEL).out_TD, before, 1e-4)


def test_cache_holds_key_and_value_heads():
    spec = build_layer(GqaConfig(), MODEL).cache_spec()
    assert [(entry.name, entry.shape) for entry in spec] == [("key", (2, 12)), ("value", (2, 12))]
