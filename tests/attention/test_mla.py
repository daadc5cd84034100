"""MLA against the naive reference, its two forms against each other, and its options."""

import math
from dataclasses import replace

import pytest
import torch

from arcforge_attention.configs import MlaConfig
from arcforge_attention.mla import MLA
from arcforge_core.config.schema import RopeScalingConfig
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.hardware import OpCall
from arcforge_core.contracts.optimizer import collect_roles
from arcforge_core.model.reference_attention import ReferenceAttention
from arcforge_core.ops import bind_ops
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.attention_suite import build_layer, close, inputs, new_cache, run
from arcforge_core.testing.small_models import small_config

MODEL = small_config(num_attention_heads=3, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14, kv_lora_rank=20)
BATCH = SequenceBatch.build([9, 1, 17])


def test_equals_the_naive_reference():
    ours = build_layer(MlaConfig(), MODEL)
    naive = ReferenceAttention(ReferenceAttentionConfig(form="mla"), MODEL, 0)
    naive.load_state_dict(ours.state_dict())
    close(run(ours, inputs(27, MODEL), BATCH, MODEL).out_TD, run(naive, inputs(27, MODEL), BATCH, MODEL).out_TD, 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_absorbed_and_expanded_forms_agree_with_gradients(dtype, tolerance):
    results = []
    for form in ("expanded", "absorbed"):
        layer = build_layer(MlaConfig(form=form), MODEL, dtype)
        x_TD = inputs(27, MODEL).to(dtype).requires_grad_()
        out_TD = run(layer, x_TD, BATCH, MODEL).out_TD
        grads = torch.autograd.grad(out_TD.square().sum(), [x_TD, *layer.parameters()])
        results.append((out_TD, *grads))
    for expanded, absorbed in zip(*results, strict=True):
        close(absorbed, expanded, tolerance)


@pytest.mark.parametrize(
    ("form", "used"),
    [
        ("auto", ["attention_varlen", "mla_decode"]),
        ("expanded", ["attention_varlen", "attention_varlen"]),
        ("absorbed", ["mla_decode", "mla_decode"]),
    ],
)
def test_form_decides_which_op_runs(form, used):
    layer, cache, called = build_layer(MlaConfig(form=form), MODEL), None, []

    def spy(op, **sizes):
        def call(*args):
            called.append(op)
            return SPECS[op].reference(*args)

        return call

    cache = new_cache(layer, [8])
    spy.deterministic = False
    spy.dtype = torch.float32
    spy.fused = lambda op, **sizes: None
    bind_ops(layer, spy)
    for tokens in (7, 1):
        run(layer, inputs(tokens, MODEL), cache.batch([0], [tokens]), MODEL, cache)
    assert [op for op in called if op in ("attention_varlen", "mla_decode")] == used


def test_scale_and_latent_norms_are_the_specs():
    layer = MLA(MlaConfig(), small_config(latent_norm_eps=3e-4), 0)
    assert layer.scale == pytest.approx((12 + 4) ** -0.5)
    assert layer.q_a_layernorm.eps == layer.kv_a_layernorm.eps == 3e-4


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_yarn_sharpens_the_softmax_by_mscale_all_dim(form):
    model = replace(MODEL, rope_scaling=RopeScalingConfig("yarn", 40.0, 8, mscale=1.0, mscale_all_dim=1.0))
    layer = build_layer(MlaConfig(form=form), model)
    assert layer.scale == pytest.approx(16**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    naive = ReferenceAttention(ReferenceAttentionConfig(form="mla"), model, 0)
    naive.load_state_dict(layer.state_dict())
    out_TD = run(layer, inputs(27, model), BATCH, model).out_TD
    close(out_TD, run(naive, inputs(27, model), BATCH, model).out_TD, 1e-5)
    layer.scale = 16**-0.5
    assert not torch.allclose(out_TD, run(layer, inputs(27, model), BATCH, model).out_TD, atol=1e-3)


def test_cache_is_the_latent_and_one_rotated_key():
    spec = build_layer(MlaConfig(), MODEL).cache_spec()
    assert [(entry.name, entry.shape) for entry in spec] == [("latent", (26,))]


def test_parameters_have_the_names_of_checkpoints():
    names = {"q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"}
    assert set(MLA(MlaConfig(), MODEL, 0).state_dict()) == {f"{name}.weight" for name in names}


def test_ops_are_bound_with_their_sizes():
    calls = {}

    def record(op, **sizes):
        calls[op] = OpCall(op, "cpu", torch.float32, True, sizes)
        return SPECS[op].reference

    record.deterministic = False
    record.dtype = torch.float32
    record.fused = lambda op, **sizes: None
    bind_ops(MLA(MlaConfig(), MODEL, 0), record)
    assert dict(calls["attention_varlen"].sizes) == {"heads": 3, "kv_heads": 3, "key_dim": 16, "value_dim": 14}
    assert calls["mla_decode"].sizes["latent_dim"] == 20


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_roles_cut_the_rows_of_keys_from_those_of_values(form):
    """One token attends to itself whatever its key is; with keys of zero only the rotary rows of queries count."""
    layer, roles = build_layer(MlaConfig(form=form), MODEL, torch.float64), {}
    for item in collect_roles(layer):
        roles[item.name] = item.role
    for name, tokens in (("kv_b_proj.weight", 1), ("q_b_proj.weight", 5)):
        weight, role = layer.get_parameter(name), roles[name]
        assert role.role == "head_matrix" and role.num_heads == MODEL.num_attention_heads
        assert len(weight) == role.num_heads * sum(role.parts)
        rows_HR = torch.arange(len(weight)).unflatten(0, (role.num_heads, -1))
        if name == "kv_b_proj.weight":
            keys_HR, used_HR = rows_HR.split(role.parts, dim=1)
        else:
            used_HR = rows_HR[:, -role.rope_rows :]
            with torch.no_grad():
                layer.kv_b_proj.weight[keys_HR.flatten()] = 0.0
        layer.zero_grad()
        x_TD = inputs(tokens, MODEL).double().requires_grad_()
        run(layer, x_TD, SequenceBatch.build([tokens]), MODEL).out_TD.square().sum().backward()
        found = (weight.grad.abs().amax(1) > 1e-12).nonzero()[:, 0]
        assert found.tolist() == used_HR.flatten().sort().values.tolist(), name
