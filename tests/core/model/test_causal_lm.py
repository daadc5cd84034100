import copy
import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.config.schema import MtpConfig
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.optimizer import ROLES, collect_roles
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.model.moe import MoE
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import small_model
from arcforge_core.train.losses import Normalizers, micro_loss, plan_mtp
from support.models import model_configs, segment_lengths, train_batch

FORMS = st.sampled_from(["mla", "gqa"])


def build(config, form="mla", ops=None):
    return build_model(config, ReferenceAttentionConfig(form=form), ops or Ops(None))


def loss_of(model, micro):
    """The whole training loss of one micro-batch."""
    depths = model.config.mtp.depths
    plan = plan_mtp(micro, depths, model.config.mtp.fraction)
    norm = Normalizers.of([micro], [plan], depths, lambda sums: (sums, 1.0))
    return micro_loss(model, micro, plan, norm)


# ---- layout ---------------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(st.integers(1, 3), st.integers(1, 6))
def test_plain_batches_are_ragged_ones_of_equal_lengths(rows, length):
    model, ids_BS = small_model(), torch.randint(64, (rows, length))
    plain = model(ids_BS).logits
    ragged = model(ids_BS.flatten(), SequenceBatch.build([length] * rows)).logits
    assert plain.shape == (rows, length, 64) and ragged.shape == (rows * length, 64)
    assert torch.equal(plain.flatten(0, 1), ragged)


@settings(max_examples=20)
@given(model_configs(), FORMS, segment_lengths())
def test_packed_documents_equal_separate_ones(config, form, lengths):
    model = build(config, form).double()
    documents = [torch.randint(config.vocab_size, (n,)) for n in lengths]
    packed_TV = model(torch.cat(documents), SequenceBatch.build(lengths)).logits
    for document, part in zip(documents, packed_TV.split(lengths), strict=True):
        torch.testing.assert_close(part, model(document[None]).logits[0], rtol=1e-9, atol=1e-9)


@settings(max_examples=10)
@given(segment_lengths(), st.data(), FORMS)
def test_a_token_is_seen_by_itself_and_later_tokens_of_its_document_only(lengths, data, form):
    model = build(small_model().config, form).double()
    total, batch = sum(lengths), SequenceBatch.build(lengths)
    tokens_T, k = torch.randint(64, (total,)), data.draw(st.integers(0, total - 1))
    other_T = tokens_T.clone()
    other_T[k] = (other_T[k] + 1) % 64
    difference_TV = model(tokens_T, batch).logits - model(other_T, batch).logits
    changed = (difference_TV.abs() > 1e-10).any(-1).tolist()
    end = next(e for e in batch.cu_query[1:].tolist() if k < e)
    assert changed == [k <= t < end for t in range(total)]


def test_bad_shapes_are_refused():
    for shape in [(3,), (0, 2), (2, 0), (1, 2, 3)]:
        with pytest.raises(ValueError, match=r"must be \[B, S\]"):
            small_model()(torch.zeros(shape, dtype=torch.int64))


def test_a_context_that_is_too_long_is_refused_before_any_work(monkeypatch):
    model = small_model(max_position_embeddings=8)
    monkeypatch.setattr(type(model), "embed", lambda *_: pytest.fail("worked"))
    with pytest.raises(ConfigError, match="sequence length=9: the model allows at most 8 positions"):
        model(torch.zeros(9, dtype=torch.int64), SequenceBatch.build([9]))
    monkeypatch.undo()
    model(torch.zeros(1, 8, dtype=torch.int64))


def test_the_past_counts_towards_the_context():
    model = small_model(max_position_embeddings=8)
    cache = model.new_cache([20])
    model(torch.zeros(6, dtype=torch.int64), cache.batch([0], [6]), cache)
    with pytest.raises(ConfigError, match="sequence length=9"):
        model(torch.zeros(3, dtype=torch.int64), cache.batch([0], [3]), cache)


def test_only_mixture_layers_report_loads_and_losses_are_means_over_them():
    model = small_model(num_hidden_layers=4, first_k_dense_replace=2)
    micro = train_batch([5, 3], 64)
    with torch.no_grad():
        out = model.hidden(micro.tokens_T, micro.batch)
        x_TD, losses, rope = model.embed(micro.tokens_T), [], model.rope(micro.batch)
        for layer in model.model.layers:
            block = layer(x_TD, micro.batch, rope)
            x_TD, losses = block.x_TD, [*losses, *block.aux_losses.values()]
    assert sorted(out.expert_loads) == [2, 3] and set(out.aux_losses) == {"balance"}
    assert all(load_E.sum() == 8 * 2 for load_E in out.expert_loads.values())
    assert torch.equal(out.aux_losses["balance"], torch.stack(losses).mean()) and len(losses) == 2
    assert torch.equal(out.hidden_TD, model.model.norm(x_TD))


@settings(max_examples=15)
@given(model_configs(), FORMS, segment_lengths())
def test_any_sizes_train(config, form, lengths):
    model = build(config, form)
    out = loss_of(model, train_batch(lengths, config.vocab_size))
    out.total.backward()
    assert out.total.isfinite()
    for name, parameter in model.named_parameters():
        # a module that no token reaches has no gradient: MTP when all its targets lie beyond their documents' ends
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    assert model.model.embed_tokens.weight.grad.abs().sum() > 0


def test_every_parameter_gets_a_gradient():
    model = small_model(n_routed_experts=2, num_experts_per_tok=2, mtp=MtpConfig(depths=2, fraction=1.0))
    loss_of(model, train_batch([9, 12], 64)).total.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


# ---- tied head ------------------------------------------------------------------------------------------------------


def test_a_tied_head_is_the_embedding_however_the_model_is_moved():
    def is_tied(model):
        return model.lm_head.weight is model.model.embed_tokens.weight

    model = small_model(tie_word_embeddings=True)
    assert is_tied(model) and is_tied(copy.deepcopy(model)) and is_tied(copy.deepcopy(model).to(torch.bfloat16))
    assert is_tied(model.to("meta")) and is_tied(model.to_empty(device="cpu"))
    untied = small_model()
    assert not is_tied(untied)
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in model.parameters()) == 64 * 32


def test_a_tied_weight_gets_both_gradients():
    tied = small_model(tie_word_embeddings=True).double()
    untied = build(dataclasses.replace(tied.config, tie_word_embeddings=False)).double()
    untied.load_state_dict(tied.state_dict())
    micro = train_batch([6], 64)
    for model in (tied, untied):
        loss_of(model, micro).total.backward()
    both = untied.model.embed_tokens.weight.grad + untied.lm_head.weight.grad
    torch.testing.assert_close(tied.model.embed_tokens.weight.grad, both)


# ---- checkpointing, dtypes, ops -------------------------------------------------------------------------------------


def test_activation_checkpointing_changes_nothing_but_memory():
    plain, thrifty = (small_model(mtp=MtpConfig(depths=2, fraction=1.0)) for _ in range(2))
    thrifty.activation_checkpointing = True
    micro, outs, runs = train_batch([5, 9, 2], 64), [], []
    for model in (plain, thrifty):
        model.model.layers[0].register_forward_pre_hook(lambda *_, model=model: runs.append(model))
        outs.append(loss_of(model, micro))
        outs[-1].total.backward()
    assert runs == [plain, thrifty, thrifty]  # the second one ran its layers again for the backward pass
    assert torch.equal(outs[0].total, outs[1].total)
    assert outs[0].expert_loads.keys() == outs[1].expert_loads.keys() == {1, 2}
    for layer, load_E in outs[0].expert_loads.items():
        assert torch.equal(load_E, outs[1].expert_loads[layer])
    for (name, ours), theirs in zip(plain.named_parameters(), thrifty.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad), name


def test_bf16_compute_keeps_fp32_weights_gradients_and_optimizer_inputs():
    model, exact = small_model(), small_model()
    model.set_compute_dtype(torch.bfloat16)
    micro = train_batch([12, 7], 64)
    hidden = model.hidden(micro.tokens_T, micro.batch)
    assert hidden.hidden_TD.dtype == model.dtype == torch.bfloat16
    assert model.logits(hidden.hidden_TD).dtype == torch.bfloat16
    loss, exact_loss = loss_of(model, micro), loss_of(exact, micro)
    assert loss.total.dtype == torch.float32
    loss.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32, name
        assert parameter.grad is None or parameter.grad.dtype == torch.float32, name
    assert loss.total.item() == pytest.approx(exact_loss.total.item(), rel=0.05)
    assert loss.total.item() != exact_loss.total.item()
    model.set_compute_dtype(None)
    assert torch.equal(loss_of(model, micro).total, exact_loss.total)


def test_the_cache_has_the_compute_dtype():
    model = small_model()
    model.set_compute_dtype(torch.bfloat16)
    assert {e.dtype for layer in model.new_cache([3]).layers for e in layer.entries.values()} == {torch.bfloat16}
    assert len(model.new_cache([3]).layers) == model.config.num_hidden_layers


def test_a_float64_model_agrees_with_finite_differences():
    model = small_model(mtp=MtpConfig(depths=2, fraction=1.0), balance_loss_weight=0.5).double()
    micro = train_batch([4], 64)
    out = loss_of(model, micro)
    assert out.total.dtype == torch.float64
    out.total.backward()
    for name in ("model.layers.1.mlp.gate.weight", "mtp.eh_proj.weight", "model.layers.0.self_attn.kv_b_proj.weight"):
        parameter, step = model.get_parameter(name), 1e-6
        direction = torch.randn_like(parameter)
        direction /= direction.norm()
        values = []
        with torch.no_grad():
            for sign in (1, -2):
                parameter += sign * step * direction
                values.append(float(loss_of(model, micro).total))
            parameter += step * direction
        slope = (values[0] - values[1]) / (2 * step)
        assert slope == pytest.approx(float((parameter.grad * direction).sum()), rel=1e-4, abs=1e-8), name


class RecordingOps(Ops):
    def __init__(self):
        super().__init__(None)
        self.calls = []

    def bind(self, call):
        self.calls.append(call)
        return super().bind(call)


def test_ops_are_bound_anew_after_a_change_of_dtype_or_device():
    ops = RecordingOps()
    model = build(small_model().config, ops=ops)
    assert {c.op for c in ops.calls} >= {"rms_norm", "swiglu", "moe_experts", "linear_cross_entropy"}
    for change, expected in (
        (lambda: model.double(), ("cpu", torch.float64)),
        (lambda: model.set_compute_dtype(torch.bfloat16), ("cpu", torch.bfloat16)),
        (lambda: model.to("meta"), ("meta", torch.bfloat16)),
    ):
        ops.calls.clear()
        change()
        assert ops.calls and {(c.device_type, c.dtype) for c in ops.calls} == {expected}


# ---- roles ----------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(model_configs(), FORMS)
def test_every_parameter_has_one_role_whose_rows_add_up(config, form):
    model = build(config, form)
    roled = collect_roles(model)
    assert [item.name for item in roled] == [name for name, _ in model.named_parameters()]
    for item in roled:
        role, shape = item.role, item.parameter.shape
        assert role.role in ROLES and (role.role == "norm") == (item.parameter.ndim < 2), item.name
        if role.parts:
            assert shape[-2] == role.num_heads * sum(role.parts), item.name
        else:
            assert role.num_heads == 1, item.name
        assert role.rope_rows <= (role.parts[-1] if role.parts else 0), item.name


def test_roles_are_what_the_parameters_are():
    found: dict[str, set[str]] = {}
    for item in collect_roles(small_model()):
        found.setdefault(item.role.role, set()).add(item.name)
    assert found["embedding"] == {"model.embed_tokens.weight"} and found["head"] == {"lm_head.weight"}
    assert {name.split(".self_attn.")[-1] for name in found["head_matrix"]} == {"q_b_proj.weight", "kv_b_proj.weight"}
    assert {name.split(".mlp.")[-1] for name in found["expert"]} == {"experts.gate_up_proj", "experts.down_proj"}
    assert found["router"] == {"model.layers.1.mlp.gate.weight", "mtp.mlp.gate.weight"}
    assert all("norm" in name for name in found["norm"])
    assert any("shared_experts" in name for name in found["matrix"]) and "mtp.eh_proj.weight" in found["matrix"]
    tied = {item.name: item.role.role for item in collect_roles(small_model(tie_word_embeddings=True))}
    assert tied["model.embed_tokens.weight"] == "embedding" and "lm_head.weight" not in tied


# ---- generation -----------------------------------------------------------------------------------------------------


def test_generate_keeps_prompts_and_pads_ends():
    model = small_model()
    ids_BS = torch.randint(64, (2, 3))
    out = model.generate(ids_BS, max_new_tokens=4)
    assert out.shape == (2, 7) and out.dtype == torch.int64 and torch.equal(out[:, :3], ids_BS)
    ragged = model.generate([[1, 2, 3], [4]], max_new_tokens=2)
    assert ragged.shape == (2, 5) and ragged[1, 3:].tolist() == [-1, -1] and (ragged[1, :3] >= 0).all()
    assert model.generate(ids_BS, max_new_tokens=1).shape == (2, 4)


def test_greedy_generation_is_the_argmax_of_the_whole_sequence():
    model = small_model()
    out = model.generate(torch.randint(64, (1, 4)), max_new_tokens=6)
    with torch.no_grad():
        assert torch.equal(model(out[:, :-1]).logits.argmax(-1)[0, 3:], out[0, 4:])


def test_buffers_are_the_router_biases_of_all_mixtures():
    model = small_model()
    mixtures = [name for name, module in model.named_modules() if isinstance(module, MoE)]
    assert [name for name, _ in model.named_buffers()] == [f"{n}.gate.e_score_correction_bias" for n in mixtures]
