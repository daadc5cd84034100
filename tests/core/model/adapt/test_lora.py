"""Adapters: nothing at first, then W + s B A in every form, with the gradients of that and of nothing else."""

import copy

import pytest
import torch

from arcforge_core.config.schema import AdapterConfig, MtpConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.optimizer import collect_roles
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.generation.weights import replace_weights
from arcforge_core.model.adapt.lora import Adapter, LowRank, attach, merged_state, named_adapters
from arcforge_core.model.adapt.quantised import quantise_model
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import small_config, small_model

IDS_BS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])
VARIANTS = [name for name in ("gqa", "mla", "dsa", "swa", "gdn", "simple_gdn") if name in registry().names("attention")]


def with_adapter(model: CausalLM, **options: object) -> CausalLM:
    """Returns a copy with adapters."""
    adapted = copy.deepcopy(model)
    torch.manual_seed(5)
    attach(adapted, Adapter(AdapterConfig(name="lora", **{"rank": 3, **options}), "base", "sha", {}))
    return adapted


def trained(model: CausalLM) -> CausalLM:
    """Gives every B values, as training does."""
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for _, low in named_adapters(model):
            low.B.copy_(0.2 * torch.randn(low.B.shape, generator=draw))
    return model


def plain(model: CausalLM, like: CausalLM) -> CausalLM:
    """Returns an ordinary model with the weights of an adapted one."""
    merged = copy.deepcopy(like)
    merged.load_state_dict(merged_state(model))
    return merged


def variant(name: str, dtype: torch.dtype = torch.float32) -> CausalLM:
    component = registry().get("attention", name)
    torch.manual_seed(0)
    heads = {"num_key_value_heads": 2} if "gdn" in name else {}
    config = small_config(mtp=MtpConfig(depths=0), **heads)
    return build_model(config, component.load_schema()(), Ops(select_hardware("auto"))).to(dtype).eval()


def test_at_first_nothing_changes() -> None:
    model = small_model()
    assert torch.equal(with_adapter(model)(IDS_BS).logits, model(IDS_BS).logits)


@pytest.mark.parametrize("rslora", [False, True])
def test_merged_equals_unmerged(rslora: bool) -> None:
    model = small_model().double()
    adapted = trained(with_adapter(model, rslora=rslora, alpha=5.0))
    merged = plain(adapted, model)
    torch.testing.assert_close(adapted(IDS_BS).logits, merged(IDS_BS).logits, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(merged(IDS_BS).logits, model(IDS_BS).logits, atol=1e-2)
    name, low = next(named_adapters(adapted))
    scale = 5.0 / (3**0.5 if rslora else 3)
    expected = model.get_parameter(name) + scale * (low.B @ low.A)
    torch.testing.assert_close(merged.get_parameter(name), expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_prompts_and_decodes_as_merged(name: str) -> None:
    """Through the kernels of this machine, absorbed and fused forms included."""
    model = variant(name)
    adapted = trained(with_adapter(model))
    merged = plain(adapted, model)
    torch.testing.assert_close(adapted(IDS_BS).logits, merged(IDS_BS).logits, rtol=1e-3, atol=1e-4)
    texts = [m.generate(IDS_BS, max_new_tokens=8).tolist() for m in (adapted, merged)]
    assert texts[0] == texts[1] != model.generate(IDS_BS, max_new_tokens=8).tolist()


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_those_of_the_merged_weights(name: str) -> None:
    """dA = s B^T dW and dB = s dW A^T, with dW of an ordinary model that has W + s B A."""
    model = variant(name, torch.float64)
    adapted = trained(with_adapter(model, alpha=2.0))
    merged = plain(adapted, model)
    weights_BSV = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for net in (adapted, merged):
        (net.train()(IDS_BS).logits * weights_BSV).sum().backward()
    checked = 0
    for name_of_weight, low in named_adapters(adapted):
        dense = merged.get_parameter(name_of_weight).grad
        assert dense is not None and low.A.grad is not None and low.B.grad is not None
        torch.testing.assert_close(low.A.grad, low.scale * low.B.mT @ dense, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(low.B.grad, low.scale * dense @ low.A.mT, rtol=1e-6, atol=1e-8)
        checked += int(dense.abs().max() > 0)
    assert checked >= 6
    adapters = {id(p) for _, low in named_adapters(adapted) for p in low.parameters()}
    assert all(p.requires_grad == (id(p) in adapters) for p in adapted.parameters())
    assert all((p.grad is not None) == (id(p) in adapters) for p in adapted.parameters())


def test_gradients_equal_finite_differences() -> None:
    model = trained(with_adapter(small_model(mtp=MtpConfig(depths=0)).double()))
    weights_BSV = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (model(IDS_BS).logits * weights_BSV).sum().backward()
    step = 1e-6
    with torch.no_grad():
        for name, low in named_adapters(model):
            for parameter in (low.A, low.B):
                place = parameter.flatten()[5:6]
                ends = []
                for sign in (1, -2):
                    place += sign * step
                    ends.append(float((model(IDS_BS).logits * weights_BSV).sum()))
                place += step
                slope = (ends[0] - ends[1]) / (2 * step)
                assert slope == pytest.approx(float(parameter.grad.flatten()[5]), rel=1e-4, abs=1e-6), name


def test_layers_of_attention_feed_forward_and_experts_are_adapted_by_default() -> None:
    names = {name for name, _ in named_adapters(with_adapter(small_model()))}
    every = {name for name, p in small_model().named_parameters() if p.ndim >= 2}
    assert every - names == {
        "model.embed_tokens.weight", "lm_head.weight", "model.layers.1.mlp.gate.weight", "mtp.mlp.gate.weight",
        "mtp.eh_proj.weight",
    }  # fmt: skip


def test_targets_choose() -> None:
    model = with_adapter(small_model(), targets=[r"layers\.0\..*q_b_proj$", "shared_experts"])
    assert [name for name, _ in named_adapters(model)] == [
        "model.layers.0.self_attn.q_b_proj.weight",
        *(f"model.layers.1.mlp.shared_experts.{name}_proj.weight" for name in ("gate", "up", "down")),
        *(f"mtp.mlp.shared_experts.{name}_proj.weight" for name in ("gate", "up", "down")),
    ]


@pytest.mark.parametrize("pattern", ["lm_head", "embed_tokens", r"mlp\.gate$", "nothing"])
def test_what_cannot_be_adapted_is_refused(pattern: str) -> None:
    with pytest.raises(
        ConfigError, match=r"adapter\.targets\[1\]=.*must match the name of an adaptable layer.*down_proj"
    ):
        with_adapter(small_model(), targets=["self_attn", pattern])


@pytest.mark.skipif("dsa" not in VARIANTS, reason="needs arcforge-attention")
def test_an_indexer_has_no_adapter() -> None:
    assert not any(".indexer." in name for name, _ in named_adapters(with_adapter(variant("dsa"))))


def test_dropout_thins_the_adapter_in_training_alone() -> None:
    options = {"dropout": 0.5, "targets": ["q_b_proj", "o_proj", "shared_experts"]}
    model = trained(with_adapter(small_model(), **options))
    first, second = model(IDS_BS).logits, model(IDS_BS).logits
    assert torch.equal(first, second)
    model.train()
    assert not torch.equal(model(IDS_BS).logits, model(IDS_BS).logits)
    low = model.model.layers[0].self_attn.o_proj
    x_TD = torch.ones(20_000, low.in_features)
    bare = x_TD @ low.weight.T
    mean_N, expected_N = (low(x_TD) - bare).mean(0), (low.eval()(x_TD) - bare).mean(0)
    torch.testing.assert_close(mean_N, expected_N, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("target", ["experts$", "kv_b_proj"])
def test_dropout_is_refused_where_there_is_no_input(target: str) -> None:
    with pytest.raises(ConfigError, match=r"adapter\.dropout=0\.1: must be 0 with model\.layers\.\d\.[\w.]+ among"):
        with_adapter(small_model(), dropout=0.1, targets=[target])


def test_optimizers_see_matrices_and_experts() -> None:
    roles = {item.name: item.role.role for item in collect_roles(with_adapter(small_model()))}
    assert roles["model.layers.0.self_attn.q_b_proj.lora.A"] == "matrix"
    assert roles["model.layers.1.mlp.experts.down_lora.B"] == "expert"
    assert roles["model.layers.0.self_attn.q_b_proj.weight"] == "head_matrix"


def test_adapters_stay_wide_beside_a_narrow_base() -> None:
    model = with_adapter(small_model().to(torch.bfloat16))
    assert {low.A.dtype for _, low in named_adapters(model)} == {torch.float32}
    batch = SequenceBatch.build([8, 8])
    hidden_TD = trained(model).hidden(IDS_BS.flatten(), batch).hidden_TD
    assert hidden_TD.dtype == torch.bfloat16
    merged = merged_state(model)
    assert {t.dtype for name, t in merged.items() if "bias" not in name} == {torch.bfloat16}
    name, low = next(named_adapters(model))
    weight = model.get_parameter(name).detach()
    assert torch.equal(merged[name], (weight.float() + low.scale * (low.B @ low.A)).detach().to(torch.bfloat16))


def test_a_is_drawn_as_peft_draws_it() -> None:
    torch.manual_seed(0)
    low = LowRank(torch.empty(8, 400), AdapterConfig(name="lora", rank=64))
    assert low.A.abs().max().item() == pytest.approx(400**-0.5, rel=1e-2) and not low.B.any()
    assert low.A.std().item() == pytest.approx((400**-0.5) / 3**0.5, rel=2e-2)


def test_adapted_models_are_neither_quantised_nor_updated() -> None:
    model = with_adapter(small_model())
    with pytest.raises(ConfigError, match="must be none with adapters: merge them first"):
        quantise_model(model, "w8a8")
    with pytest.raises(CheckpointError, match="an update: the model has adapters"):
        replace_weights(model, merged_state(model), "an update")
