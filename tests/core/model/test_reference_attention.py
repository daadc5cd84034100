"""Naive attention against the formulas of spec 1.3, written out per token and head."""

import copy

import pytest
import torch

from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.model.reference_attention import ReferenceAttention
from arcforge_core.testing.attention_suite import build_layer, close, inputs, rope, run
from arcforge_core.testing.small_models import small_config

MODEL = small_config(num_attention_heads=4, num_key_value_heads=2)


def softmax_average(q_K, k_SK, v_SV, scale):
    weights = ((k_SK @ q_K) * scale).exp()
    return (weights[:, None] * v_SV).sum(0) / weights.sum()


def turn(x_R, cos_F, sin_F):
    pairs = [(a * c - b * s, a * s + b * c) for a, b, c, s in zip(x_R[0::2], x_R[1::2], cos_F, sin_F, strict=True)]
    return torch.stack([value for pair in pairs for value in pair])


def norm(x, weight, eps):
    return x / (x.square().mean() + eps).sqrt() * weight


def test_mla_is_the_formula_of_the_spec():
    layer = build_layer(ReferenceAttentionConfig(form="mla"), MODEL, torch.float64)
    x_TD, batch = inputs(5, MODEL).double(), SequenceBatch.build([5])
    w, (cos, sin) = layer.state_dict(), (table.double() for table in rope(batch, MODEL))
    heads, nope, rotary, value, latent = 4, 12, 4, 16, 16
    up = w["kv_b_proj.weight"].view(heads, nope + value, latent)
    rows = []
    for t in range(5):
        out = []
        for h in range(heads):
            keys, values = [], []
            for s in range(t + 1):
                mixed = w["kv_a_proj_with_mqa.weight"] @ x_TD[s]
                c = norm(mixed[:latent], w["kv_a_layernorm.weight"], MODEL.latent_norm_eps)
                keys.append(torch.cat([up[h, :nope] @ c, turn(mixed[latent:], cos[s], sin[s])]))
                values.append(up[h, nope:] @ c)
            q_latent = norm(w["q_a_proj.weight"] @ x_TD[t], w["q_a_layernorm.weight"], MODEL.latent_norm_eps)
            q = (w["q_b_proj.weight"] @ q_latent).view(heads, nope + rotary)[h]
            q = torch.cat([q[:nope], turn(q[nope:], cos[t], sin[t])])
            out.append(softmax_average(q, torch.stack(keys), torch.stack(values), (nope + rotary) ** -0.5))
        rows.append(w["o_proj.weight"] @ torch.cat(out))
    close(run(layer, x_TD, batch, MODEL).out_TD, torch.stack(rows), 1e-10)


def test_gqa_is_attention_of_grouped_heads():
    layer = build_layer(ReferenceAttentionConfig(form="gqa"), MODEL, torch.float64)
    x_TD, batch = inputs(5, MODEL).double(), SequenceBatch.build([5])
    w, (cos, sin) = layer.state_dict(), (table.double() for table in rope(batch, MODEL))

    def head(name, token, index):
        x_K = (w[f"{name}.weight"] @ x_TD[token]).view(-1, 16)[index]
        return x_K if name == "v_proj" else torch.cat([turn(x_K[:4], cos[token], sin[token]), x_K[4:]])

    rows = []
    for t in range(5):
        out = []
        for h in range(4):
            k_SK = torch.stack([head("k_proj", s, h // 2) for s in range(t + 1)])
            v_SK = torch.stack([head("v_proj", s, h // 2) for s in range(t + 1)])
            out.append(softmax_average(head("q_proj", t, h), k_SK, v_SK, 16**-0.5))
        rows.append(w["o_proj.weight"] @ torch.cat(out))
    close(run(layer, x_TD, batch, MODEL).out_TD, torch.stack(rows), 1e-10)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"num_key_value_heads": 3}, "model.num_key_value_heads"), ({"qk_rope_head_dim": 18}, "model.qk_rope_head_dim")],
)
def test_impossible_gqa_sizes_are_refused_by_name(changes, field):
    model = small_config(**{"num_attention_heads": 4, "num_key_value_heads": 2, **changes})
    with pytest.raises(ConfigError, match="must") as error:
        ReferenceAttention.check(ReferenceAttentionConfig(form="gqa"), model)
    assert error.value.field == field
    ReferenceAttention.check(ReferenceAttentionConfig(form="mla"), model)


def test_layers_can_be_copied():
    layer = build_layer(ReferenceAttentionConfig(), MODEL)
    assert copy.deepcopy(layer).state_dict().keys() == layer.state_dict().keys()
