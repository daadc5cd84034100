"""Gated DeltaNet against transformers' Qwen3-Next, its convolution, its initial weights, mixed models."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_attention.configs import GdnConfig
from arcforge_attention.gdn import GatedDeltaNet, ShortConvolution, sigmoid, softplus
from arcforge_attention.gqa import GQA
from arcforge_core.contracts.attention import StateEntry
from arcforge_core.contracts.batch import SequenceBatch, cumulative
from arcforge_core.contracts.optimizer import collect_roles
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model, check_model
from arcforge_core.model.params import cache_bytes
from arcforge_core.testing.attention_suite import build_layer, close, inputs, run
from arcforge_core.testing.small_models import small_config

MODEL = small_config(num_attention_heads=6, num_key_value_heads=2, head_dim=12, qk_rope_head_dim=6)


def qwen3_next():
    """Returns transformers' layer of the sizes of `MODEL`, on its torch path."""
    from transformers.models.qwen3_next import modeling_qwen3_next as hf

    config = hf.Qwen3NextConfig(
        hidden_size=32, linear_num_value_heads=6, linear_num_key_heads=2, linear_key_head_dim=12,
        linear_value_head_dim=12, linear_conv_kernel_dim=4, rms_norm_eps=MODEL.rms_norm_eps, num_hidden_layers=2,
        hidden_act="silu",
    )  # fmt: skip
    return hf.Qwen3NextGatedDeltaNet(config, 0)


def fused(*parts, groups=2):
    """Lays the rows of each key head of several projections one after another."""
    return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 1)


def in_their_layout(state):
    """Renames our parameters (or gradients) and fuses the projections."""
    part = {name.removesuffix("_proj.weight"): value for name, value in state.items()}
    return {
        "in_proj_qkvz.weight": fused(part["q"], part["k"], part["v"], part["z"]),
        "in_proj_ba.weight": fused(part["b"], part["a"]),
        "conv1d.weight": state["conv1d.weight"],
        "A_log": state["A_log"],
        "dt_bias": state["dt_bias"],
        "norm.weight": state["o_norm.weight"],
        "out_proj.weight": part["o"],
    }


@pytest.mark.parametrize("tokens", [1, 3, 150])
def test_equals_transformers_qwen3_next(tokens):
    ours, theirs = build_layer(GdnConfig(), MODEL), qwen3_next()
    theirs.load_state_dict(in_their_layout(ours.state_dict()))
    outs = []
    for layer in (ours, theirs):
        x_TD = inputs(tokens, MODEL).requires_grad_()
        batch = SequenceBatch.build([tokens])
        out_TD = run(ours, x_TD, batch, MODEL).out_TD if layer is ours else theirs(x_TD[None])[0]
        (out_TD * inputs(tokens, MODEL).flip(0)).sum().backward()
        outs.append((out_TD, x_TD.grad))
    close(outs[0][0], outs[1][0], 1e-5)
    close(outs[0][1], outs[1][1], 1e-4)
    gradients = in_their_layout({name: p.grad for name, p in ours.named_parameters()})
    for name, parameter in theirs.named_parameters():
        close(gradients[name], parameter.grad, 1e-4)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_the_convolution_is_torchs_in_every_cut(lengths, data):
    conv = ShortConvolution(3).double()
    with torch.no_grad():
        conv.init_own_weights()
    x_TC = torch.randn(sum(lengths), 3, dtype=torch.float64)
    tails_NWC = torch.zeros(len(lengths), 3, 3, dtype=torch.float64)
    whole, _ = conv(x_TC, tails_NWC, cumulative(lengths))
    for x, got in zip(x_TC.split(lengths), whole.split(lengths), strict=True):
        wanted = F.conv1d(x.mT[None], conv.weight, padding=3, groups=3)[0, :, : len(x)].mT
        torch.testing.assert_close(got, wanted)
    firsts = [data.draw(st.integers(1, n)) for n in lengths]
    heads, rests = zip(*((x[:n], x[n:]) for x, n in zip(x_TC.split(lengths), firsts, strict=True)), strict=True)
    _, tails_NWC = conv(torch.cat(heads), tails_NWC, cumulative(firsts))
    left = [n for n, rest in enumerate(rests) if len(rest)]
    if left:
        cu = cumulative([len(rests[n]) for n in left])
        got, _ = conv(torch.cat([rests[n] for n in left]), tails_NWC[left], cu)
        wanted = torch.cat([whole.split(lengths)[n][firsts[n] :] for n in left])
        assert torch.equal(got, wanted)


def test_gates_are_torchs_and_finite_at_the_ends():
    x = torch.tensor([-1e4, -100.0, -20.0, -1.0, 0.0, 1.0, 19.9, 20.1, 100.0, 1e4])
    for ours, theirs in ((sigmoid, torch.sigmoid), (softplus, F.softplus)):
        results = []
        for fn in (ours, theirs):
            given = x.clone().requires_grad_()
            fn(given).sum().backward()
            results.append((fn(x), given.grad))
        torch.testing.assert_close(*results, atol=1e-8, rtol=1e-5)


def test_gates_of_a_token_are_the_same_bits_in_every_batch():
    x = 5 * torch.randn(300, generator=torch.Generator().manual_seed(0))
    for fn in (sigmoid, softplus):
        whole = fn(x)
        for first, count in itertools.product((0, 1, 70), (1, 2, 3, 5, 8, 31, 63, 64, 65, 130)):
            assert torch.equal(fn(x[first : first + count].clone()), whole[first : first + count])


def test_decays_begin_as_in_fla_and_have_no_weight_decay():
    torch.manual_seed(0)
    sizes = small_config(num_attention_heads=400, num_key_value_heads=1, head_dim=4, qk_rope_head_dim=4)
    model = build_model(sizes, GdnConfig())
    layer = model.model.layers[0].self_attn
    rates, steps = layer.A_log.detach().exp(), F.softplus(layer.dt_bias.detach())
    assert float(rates.min()) > 0 and float(rates.max()) <= 16 and 7 < float(rates.mean()) < 9
    assert float(steps.min()) >= 0.999e-3 and float(steps.max()) <= 0.1001
    assert -4.9 < float(steps.log().mean()) < -4.3  # the middle of log 0.001 and log 0.1 is -4.6
    taps = layer.conv1d.weight.detach()
    assert float(taps.abs().max()) <= 0.5 and float(taps.std()) == pytest.approx(0.5 / 3**0.5, rel=0.05)
    assert torch.equal(layer.o_norm.weight, torch.ones(4))
    roles = {r.name.split("self_attn.")[1]: r.role.role for r in collect_roles(model) if "layers.0.self_attn" in r.name}
    scalars = {name for name, role in roles.items() if role == "scalar"}
    assert scalars == {"A_log", "dt_bias", "conv1d.weight"} and roles["q_proj.weight"] == "matrix"


def test_layers_alternate_and_the_mtp_module_is_like_the_last():
    model = build_model(small_config(num_hidden_layers=4), GdnConfig())
    layers = [layer.self_attn for layer in model.model.layers]
    assert [type(layer) for layer in layers] == [GatedDeltaNet, GQA, GatedDeltaNet, GQA]
    assert type(model.mtp.self_attn) is GQA
    alone = build_model(small_config(), GdnConfig(pattern="L"))
    assert type(alone.mtp.self_attn) is GatedDeltaNet


def test_the_cache_is_a_state_and_the_tail_of_the_convolution():
    layer = build_layer(GdnConfig(), MODEL)
    state, tail = layer.cache_spec()
    assert state == StateEntry("state", (6, 12, 12), torch.float32) and tail == StateEntry("conv", (3, 12 * 10))
    model = build_model(MODEL, GdnConfig(pattern="L"))
    assert cache_bytes(model, 1) == cache_bytes(model, 100_000) == 2 * (6 * 12 * 12 * 4 + 3 * 120 * 2)
    assert build_layer(GdnConfig(), MODEL, torch.float64).cache_spec()[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "field", "told"),
    [
        (lambda: GdnConfig(pattern=""), "attention.pattern", "letters F"),
        (lambda: GdnConfig(pattern="SF"), "attention.pattern", "L"),
        (lambda: check_model(MODEL, GdnConfig(pattern="LFL")), "attention.pattern", "num_hidden_layers=2"),
        (
            lambda: check_model(small_config(num_attention_heads=3, num_key_value_heads=2), GdnConfig()),
            "model.num_key_value_heads",
            "divide",
        ),
    ],
)
def test_bad_options_are_refused_by_name(make, field, told):
    with pytest.raises(ConfigError, match=told) as error:
        make()
    assert error.value.field == field


def test_a_step_of_training_moves_every_parameter():
    torch.manual_seed(0)
    model = build_model(small_config(num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2), GdnConfig())
    before = copy.deepcopy(dict(model.named_parameters()))
    hidden = model.hidden(torch.arange(40) % 64, SequenceBatch.build([17, 1, 22])).hidden_TD
    model.logits(hidden).log_softmax(-1)[:, 3].sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    still = {n for n, p in model.named_parameters() if not n.startswith("mtp") and torch.equal(p, before[n])}
    assert not {name for name in still if "self_attn" in name}
