"""Weights in a chip's layout: its kernels read them, everything else sees ordinary tensors, a lossy layout is named."""

import copy
import dataclasses

import pytest
import torch

from arcforge_core.checkpoint.pretrained import load_pretrained, save_pretrained
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.contracts.hardware import YES, Kernel, PreparesWeights, Verdict
from arcforge_core.generation.weights import replace_weights
from arcforge_core.model.adapt.prepared import prepare_weights, tensors_of
from arcforge_core.model.adapt.quantised import quantise_model
from arcforge_core.model.adapt.state import ordinary_shapes, state_of
from arcforge_core.model.build import build_model
from arcforge_core.ops import Ops, reference
from arcforge_core.ops.dispatch import fault_of
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.ops.prepared import PreparedWeight
from arcforge_core.testing import model_checks
from arcforge_core.testing.hardware_checks import check_kernel
from arcforge_core.testing.small_models import small_config

NO_GRAD = lambda call: Verdict(not call.needs_grad, "no backward pass")  # noqa: E731
IDS = torch.arange(24).reshape(2, 12)


class Turned(TorchCpu):
    """A chip whose kernels take transposed matrices, and int4 with sums of the rows beside them."""

    def __init__(self, lossy=False, refused=()):
        super().__init__(None)
        self.lossy, self.refused, self.calls = lossy, refused, []

    def kernels(self):
        def linear(x, turned_KN, bias_N=None):
            self.calls.append("linear")
            out = x @ turned_KN
            return out if bias_N is None else out + bias_N

        def moe_experts(x_TD, gate_up_EDF, down_EFD, expert_TK, gate_TK):
            self.calls.append("moe_experts")
            return reference.moe_experts(x_TD, gate_up_EDF.mT, down_EFD.mT, expert_TK, gate_TK)

        def quant_linear(x, weight, scale_NG, bias_N=None, rounds=True):
            self.calls.append("quant_linear")
            values, sums = weight
            assert sums.dtype == torch.int32
            return reference.quant_linear(x, values.mT, scale_NG, bias_N, rounds)

        return [
            Kernel("linear", "turned.linear", linear, NO_GRAD, layouts={"weight_NK": "turned"}),
            Kernel(
                "moe_experts", "turned.experts", moe_experts, NO_GRAD,
                layouts={"gate_up_EFD": "turned", "down_EDF": "turned"},
            ),
            Kernel("quant_linear", "turned.quant", quant_linear, NO_GRAD, layouts={"weight": "summed"}),
        ]  # fmt: skip

    def prepare_weight(self, weight, value):
        if weight.name in self.refused:
            return None
        turned = value.mT.contiguous()
        if weight.layout == "summed":
            return turned, turned.to(torch.int32).sum(-2, dtype=torch.int32)
        return turned.bfloat16().float() if self.lossy else turned

    def restore_weight(self, weight, prepared):
        values = prepared[0] if weight.layout == "summed" else prepared
        return values.mT.contiguous()


def model_on(hardware, seed=0, **changes):
    torch.manual_seed(seed)
    return build_model(small_config(**changes), ReferenceAttentionConfig(), Ops(hardware)).eval()


@pytest.mark.parametrize("mode", ["none", "w8a8", "w4a8"])
@torch.inference_mode()
def test_the_kernels_of_a_layout_run_after_weights_are_prepared_and_say_the_same(mode):
    chip = Turned()
    model, plain = model_on(chip), model_on(None)
    for each in (model, plain):
        quantise_model(each, mode)
    model(IDS)
    assert chip.calls == []
    names = prepare_weights(model)
    assert names and prepare_weights(model) == []
    torch.testing.assert_close(model(IDS).logits, plain(IDS).logits, rtol=1e-4, atol=1e-4)
    wanted = {"none": {"linear", "moe_experts"}}.get(mode, {"linear", "quant_linear"})
    assert set(chip.calls) == wanted


def test_state_dicts_saved_checkpoints_and_copies_are_ordinary(tmp_path):
    model = model_on(Turned())
    wanted, shapes = {n: v.clone() for n, v in model.state_dict().items()}, ordinary_shapes(model)
    prepare_weights(model)
    assert ordinary_shapes(model) == shapes
    for state in (model.state_dict(), state_of(model)):
        assert {type(value) for value in state.values()} == {torch.Tensor}
        assert all(torch.equal(state[name], wanted[name]) for name in state)
    save_pretrained(model, tmp_path / "saved")
    saved = load_pretrained(tmp_path / "saved", ops=Ops(None)).state_dict()
    assert all(torch.equal(saved[name], wanted[name]) for name in saved)
    weight = model.model.layers[0].mlp.down_proj.weight
    assert isinstance(weight, PreparedWeight) and isinstance(weight, torch.nn.Parameter)
    assert torch.equal(copy.deepcopy(weight)[3], wanted["model.layers.0.mlp.down_proj.weight"][3])
    assert weight.shape == wanted["model.layers.0.mlp.down_proj.weight"].shape and not weight.requires_grad


@pytest.mark.parametrize("mode", ["none", "w4a8"])
def test_an_update_reaches_prepared_weights_in_the_same_memory(mode):
    model, new = model_on(Turned()), model_on(None, seed=1)
    update = {name: value.clone() for name, value in state_of(new).items()}
    for each in (model, new):
        quantise_model(each, mode)
    prepare_weights(model)
    before = {n: w.prepared for n, w in tensors_of(model).items() if isinstance(w, PreparedWeight)}
    replace_weights(model, update, "update")
    after = tensors_of(model)
    assert before and all(after[name].prepared is prepared for name, prepared in before.items())
    with torch.inference_mode():
        torch.testing.assert_close(model(IDS).logits, new(IDS).logits, rtol=1e-4, atol=1e-4)
    state = new.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    model.load_state_dict(model_on(None, seed=2).state_dict() if mode == "none" else state)
    assert isinstance(tensors_of(model)["model.layers.0.self_attn.o_proj.weight"], PreparedWeight)


def test_tied_refused_and_trained_weights_stay_as_they_are():
    name = "model.layers.0.self_attn.o_proj.weight"
    model = model_on(Turned(refused=(name,)), tie_word_embeddings=True)
    names = prepare_weights(model)
    assert name not in names and not any(n in names for n in ("lm_head.weight", "model.embed_tokens.weight"))
    assert prepare_weights(model_on(Turned()).train()) == [] and prepare_weights(model_on(None)) == []


def test_gradients_and_calls_beyond_limits_use_ordinary_weights_and_safe_dispatch_survives_a_kernel(monkeypatch):
    class Narrow(Turned):
        def kernels(self):
            limits = lambda x, *_: Verdict(x.shape[0] < 20, "the grid ends")  # noqa: E731
            return [dataclasses.replace(kernel, limits=limits) for kernel in super().kernels()]

    chip, plain = Narrow(), model_on(None)
    model = model_on(chip)
    prepare_weights(model)
    torch.testing.assert_close(model(IDS).logits, plain(IDS).logits, rtol=1e-4, atol=1e-4)
    assert chip.calls == []  # 24 tokens
    model(IDS[:1])
    assert chip.calls == []  # norms have gradients
    with torch.inference_mode():
        model(IDS[:1])
    assert set(chip.calls) == {"linear", "moe_experts"}

    class Broken(Turned):
        def kernels(self):
            return [dataclasses.replace(k, fn=lambda *args: 1 / 0) for k in super().kernels()]

    monkeypatch.setenv("ARCFORGE_DISPATCH", "safe")
    model = model_on(Broken())
    prepare_weights(model)
    with torch.inference_mode():
        torch.testing.assert_close(model(IDS).logits, plain(IDS).logits, rtol=1e-4, atol=1e-4)


def test_the_kit_checks_kernels_on_prepared_weights_and_names_a_lossy_layout():
    chip, lossy = Turned(), Turned(lossy=True)
    assert isinstance(chip, PreparesWeights) and not isinstance(TorchCpu(None), PreparesWeights)
    for number, op in enumerate(("linear", "moe_experts", "quant_linear")):
        dtype = torch.float32
        result = check_kernel(chip.kernels()[number], "cpu", dtype, backend=chip)
        assert (result.verdict, result.op) == ("pass", op), result.reason
    broken = check_kernel(lossy.kernels()[0], "cpu", torch.float32, backend=lossy)
    assert broken.verdict == "fail" and "weight_NK came back from layout turned with other bits" in broken.reason
    without = check_kernel(chip.kernels()[0], "cpu", torch.float32)
    assert without.verdict == "fail" and "has no prepare_weight" in without.reason
    assert model_checks.round_trip_fault(chip, 0) == ""
    assert "(weights=none) came back from its layout with other bits" in model_checks.round_trip_fault(lossy, 0)
    assert model_checks.decode_fault(chip, 0) == ""
    nothing = type("Nothing", (Turned,), {"kernels": lambda self: []})()
    assert model_checks.round_trip_fault(nothing, 0).endswith("no weight was prepared")


def test_a_layout_of_an_argument_that_is_no_weight_is_refused():
    kernel = Kernel("swiglu", "acme", reference.swiglu, lambda _: YES, layouts={"gate": "turned"})
    assert fault_of(kernel) == "its layouts are of gate, and weights of swiglu that have layouts are: none"
