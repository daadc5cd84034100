"""What surrounds attention while few tokens are decoded: one call of C++ equals the parts, in any number of threads."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.config.compose import compose
from arcforge_core.model.build import build_model
from arcforge_core.ops import Fused, Ops, reference
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.index_prolog import index_prolog
from arcforge_hw.cpu.native.mla_absorb import mla_absorb
from arcforge_hw.cpu.native.mla_epilog import mla_epilog
from arcforge_hw.cpu.native.mla_prolog import mla_prolog
from arcforge_hw.cpu.native.mlp import mlp
from arcforge_hw.cpu.native.moe import moe

OPS = ("mla_prolog", "mla_absorb", "mla_epilog", "index_prolog", "mlp", "moe")

FUSED = {fn.__name__: fn for fn in (mla_prolog, mla_absorb, mla_epilog, index_prolog, mlp, moe)}


def model_of(attention, *options):
    """Sizes in whole vectors, so that fused ops run; both kinds of feed-forward."""
    sizes = ["hidden_size=64", "q_lora_rank=32", "kv_lora_rank=32", "intermediate_size=96", "moe_intermediate_size=32"]
    sizes += ["index_topk=8", "num_attention_heads=4", "v_head_dim=16", "mtp.depths=0", "vocab_size=128"]
    config = compose(["model=tiny", f"attention={attention}", *(f"model.{x}" for x in sizes), *options])
    torch.manual_seed(0)
    return build_model(config.model, config.attention, Ops(select_hardware("cpu"))).eval()


def decoded(model, lengths, steps):
    """Logits of tokens decoded after prompts of these lengths."""
    draw = torch.Generator().manual_seed(1)
    cache, found = model.new_cache([n + sum(steps) for n in lengths]), []
    with torch.inference_mode():
        for queries in (lengths, *([step] * len(lengths) for step in steps)):
            ids = torch.randint(128, (sum(queries),), generator=draw)
            found.append(model(ids, cache.batch(range(len(lengths)), queries), cache).logits)
    return torch.cat(found[1:])


def one_by_one(model):
    """The same model without fused ops."""
    plain = copy.deepcopy(model)
    for module in plain.modules():
        for value in vars(module).values():
            if isinstance(value, Fused):
                value.rows = 0
    return plain


def count(monkeypatch):
    """Lists the fused ops that are called in C++."""
    called = []

    def note(name, *_):
        op = name.removeprefix("arcforge_").rpartition("_")[0]
        if op in FUSED:
            called.append(op)

    monkeypatch.setattr(native._listening, "to", note)
    return called


@pytest.mark.parametrize("attention", ["dsa", "mla"])
@pytest.mark.parametrize(("lengths", "steps"), [([20], [1, 1, 3]), ([5, 21, 9], [1, 2]), ([3], [1, 4])])
def test_decoding_equals_its_parts(attention, lengths, steps, monkeypatch):
    """One sequence and several, one token and drafts, fewer keys than top-k and more."""
    model, called = model_of(attention), count(monkeypatch)
    logits = decoded(model, lengths, steps)
    assert {"mla_prolog", "mla_absorb", "mla_epilog", "mlp", "moe"} <= set(called)
    assert ("index_prolog" in called) == (attention == "dsa")
    called.clear()
    torch.testing.assert_close(logits, decoded(one_by_one(model), lengths, steps), rtol=2e-4, atol=2e-5)
    assert not called


@pytest.mark.parametrize("attention", ["mla", "gqa"])
def test_models_in_bfloat16_decode_near_their_parts(attention, monkeypatch):
    model, called = model_of(attention).bfloat16(), count(monkeypatch)
    logits = decoded(model, [20, 3], [1, 1])
    assert set(called) == {"mlp", "moe"}
    called.clear()
    torch.testing.assert_close(logits, decoded(one_by_one(model), [20, 3], [1, 1]), rtol=3e-2, atol=3e-2)
    assert not called


def test_a_layer_that_shares_its_selection_decodes_too(monkeypatch):
    model = model_of("dsa", "attention.indexer_types=[full,shared,full]")
    called = count(monkeypatch)
    logits = decoded(model, [20], [1, 1])
    assert called.count("index_prolog") == 4
    torch.testing.assert_close(logits, decoded(one_by_one(model), [20], [1, 1]), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_a_forced_form_is_kept(form, monkeypatch):
    model, called = model_of("mla", f"attention.form={form}"), count(monkeypatch)
    decoded(model, [5], [1])
    assert ("mla_prolog" in called) == (form == "absorbed")


def test_hooks_quantised_parts_other_weights_and_many_tokens_take_the_parts(monkeypatch):
    model, called = model_of("mla"), count(monkeypatch)
    layer, heard = model.model.layers[0], []
    layer.self_attn.q_a_proj.register_forward_hook(lambda *_: heard.append(1))
    decoded(model, [5], [1])
    assert len(heard) == 2
    assert called.count("mla_prolog") == 2  # the other layers
    called.clear()
    model.set_compute_dtype(torch.bfloat16)
    decoded(model, [5], [1])
    decoded(model_of("mla"), [5] * (native.FEW_ROWS + 1), [1])
    assert not called

    class Other(type(layer.mlp.gate_proj)):
        """Any other layer in the place of a projection."""

    model = model_of("mla")
    for block in model.model.layers:
        feed_forward = getattr(block.mlp, "shared_experts", block.mlp)
        feed_forward.gate_proj = Other(64, feed_forward.gate_proj.out_features)
    model.rebind()
    decoded(model, [5], [1])
    assert not {"mlp", "moe"} & set(called)


def test_gradients_take_the_parts(monkeypatch):
    model, called = model_of("mla"), count(monkeypatch)
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert not called
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("op", ["mlp", "moe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_is_the_same_whatever_else_is_decoded(op, dtype):
    args = list(next(case for case in op_cases(op) if case.name == "tokens").inputs(dtype, "cpu").values())
    whole = FUSED[op](*args)
    for n in range(len(whole)):
        assert torch.equal(FUSED[op](args[0][n : n + 1], *args[1:])[0], whole[n])


@pytest.mark.parametrize("op", OPS)
def test_the_number_of_threads_changes_no_bit(op, monkeypatch):
    args = next(case for case in op_cases(op) if case.name == "tokens").inputs(torch.float32, "cpu").values()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    one = FUSED[op](*args)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    three = FUSED[op](*args)
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (one, three)), strict=True):
        assert torch.equal(a, b)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(1, 9), st.integers(1, 4), st.integers(0, 99))
def test_mixtures_equal_the_reference(tokens, chosen, vectors, seed):
    """Any number of chosen experts, and biases that change the choice."""
    draw = torch.Generator().manual_seed(seed)
    experts, hidden, width = 9, 16 * vectors, 16
    shapes = [(experts, hidden), (experts,), (experts, 2 * width, hidden), (experts, hidden, width)]
    shapes += [(width, hidden), (width, hidden), (hidden, width)]
    args = [torch.randn(tokens, hidden, generator=draw), *(torch.randn(shape, generator=draw) for shape in shapes)]
    wanted = reference.moe(*(x.double() for x in args), chosen, 2.5)
    error = (moe(*args, chosen, 2.5).double() - wanted).abs().max()
    assert error <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("op", OPS)
def test_weights_of_other_sizes_are_refused(op):
    """Every weight in turn loses its last row: C++ would read beyond it."""
    case = next(case for case in op_cases(op) if case.name == "tokens")
    given = case.inputs(torch.float32, "cpu")
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and name not in ("x_TD", "out_THL"):
            with pytest.raises(
                (ValueError, RuntimeError), match=r"must be|must match|beside|has .* rows|multiplied|split|shape"
            ):
                FUSED[op](*{**given, name: value[:-1]}.values())


@pytest.mark.parametrize("chosen", [0, 8])
def test_more_experts_than_there_are_cannot_be_chosen(chosen):
    args = {**op_cases("moe")[0].inputs(torch.float32, "cpu"), "chosen": chosen}
    with pytest.raises(ValueError, match=f"chosen={chosen}: must be from 1 to 7"):
        moe(*args.values())
