"""SimpleGDN: the parameters of GQA in the plain recurrence, and what its options do."""

import math

import pytest
import torch

from arcforge_attention.configs import GqaConfig, SimpleGdnConfig
from arcforge_attention.simple_gdn import SimpleGatedDeltaNet, log_decays
from arcforge_core.contracts.attention import StateEntry
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import check_model
from arcforge_core.ops import reference
from arcforge_core.testing.attention_suite import build_layer, close, inputs, rope, run
from arcforge_core.testing.small_models import small_config

MODEL = small_config(num_attention_heads=6, num_key_value_heads=2, head_dim=12, qk_rope_head_dim=6)
OPTIONS = [
    {},
    {"rope": False},
    {"beta": 0.3},
    {"decay": "fixed"},
    {"qk_norm": True, "bias": True},
]


def written_out(layer, x_TD, options):
    """The recurrence as the docstring has it, from the layer's own projections."""
    batch = SequenceBatch.build([len(x_TD)])
    heads = [proj(x_TD).unflatten(-1, (-1, 12)) for proj in (layer.q_proj, layer.k_proj, layer.v_proj)]
    q, k, v = layer.q_norm(heads[0]), layer.k_norm(heads[1]), heads[2]
    if options.get("rope", True):
        q, k = (torch.cat((reference.rope(x[..., :6], *rope(batch, MODEL)), x[..., 6:]), -1) for x in (q, k))
    outs_TH = []
    for h in range(6):
        decay, state = 0.5 ** (1 / half_life(h)) if options.get("decay") == "fixed" else 1.0, torch.zeros(12, 12)
        for t in range(len(x_TD)):
            k_K, q_K = (x / x.norm() for x in (k[t, h // 3], q[t, h]))
            state = decay * state
            state = state + options.get("beta", 1.0) * torch.outer(k_K, v[t, h // 3] - state.T @ k_K)
            outs_TH.append(state.T @ q_K)
    return layer.o_proj(torch.stack(outs_TH).view(6, len(x_TD), 12).transpose(0, 1).flatten(1))


def half_life(head):
    return 32 * 1024 ** (head / 5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_the_recurrence_written_out(options):
    layer, x_TD = build_layer(SimpleGdnConfig(**options), MODEL), inputs(40, MODEL)
    with torch.no_grad():
        wanted_TD = written_out(layer, x_TD, options)
    close(run(layer, x_TD, SequenceBatch.build([40]), MODEL).out_TD, wanted_TD, 2e-5)


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "bias": True}], ids=str)
def test_weights_of_gqa_load_as_they_are(options):
    gqa, linear = build_layer(GqaConfig(**options), MODEL), SimpleGatedDeltaNet(SimpleGdnConfig(**options), MODEL, 0)
    linear.load_state_dict(gqa.state_dict())
    assert {n: p.shape for n, p in gqa.named_parameters()} == {n: p.shape for n, p in linear.named_parameters()}


def test_what_was_stored_last_is_read_back_in_its_size():
    """One head whose query is its key: the output projection gets the token's own value."""
    sizes = small_config(num_attention_heads=1, num_key_value_heads=1)
    layer = build_layer(SimpleGdnConfig(), sizes)
    with torch.no_grad():
        layer.q_proj.weight.copy_(layer.k_proj.weight)
        x_TD = inputs(30, sizes)
        close(run(layer, x_TD, SequenceBatch.build([30]), sizes).out_TD, layer.o_proj(layer.v_proj(x_TD)), 1e-4)


def test_the_state_stays_bounded_without_a_gate():
    """4000 tokens of few directions, the hardest case: values of length 1 leave a state of about sqrt(K)."""
    torch.manual_seed(0)
    k = torch.nn.functional.normalize(torch.randn(4000, 1, 8) + 3 * torch.randn(1, 1, 8), dim=-1)
    v, ones = torch.nn.functional.normalize(torch.randn(4000, 1, 8), dim=-1), torch.ones(4000, 1)
    cu = torch.tensor([0, 4000], dtype=torch.int32)
    _, state = reference.gated_delta_rule(k, k, v, 0 * ones, ones, torch.zeros(1, 1, 8, 8), cu, 1.0)
    assert float(state.norm()) < 10


def test_half_lives_are_spread_geometrically():
    lives = [-math.log(2) / g for g in log_decays(6)]
    assert lives == pytest.approx([half_life(h) for h in range(6)])
    assert log_decays(1) == [-math.log(2) / 32768]


def test_the_cache_is_one_state():
    assert build_layer(SimpleGdnConfig(), MODEL).cache_spec() == (StateEntry("state", (6, 12, 12), torch.float32),)


@pytest.mark.parametrize(
    ("make", "field", "told"),
    [
        (lambda: SimpleGdnConfig(decay="learned"), "attention.decay", "none, fixed"),
        (lambda: SimpleGdnConfig(beta=0.0), "attention.beta", r"\(0, 1\]"),
        (lambda: SimpleGdnConfig(beta=1.5), "attention.beta", r"\(0, 1\]"),
        (lambda: SimpleGdnConfig(beta=math.nan), "attention.beta", r"\(0, 1\]"),
        (lambda: SimpleGdnConfig(pattern="SF"), "attention.pattern", "L"),
        (lambda: check_model(MODEL, SimpleGdnConfig(pattern="LLF")), "attention.pattern", "num_hidden_layers=2"),
    ],
)
def test_bad_options_are_refused_by_name(make, field, told):
    with pytest.raises(ConfigError, match=told) as error:
        make()
    assert error.value.field == field
