"""Models of integer weights: what is kept how, how far logits move, what memory is left, updates, refusals."""

import pytest
import torch

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.config.schema import MtpConfig
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.generation.engine import build_engine
from arcforge_core.generation.weights import checksum, replace_weights
from arcforge_core.model.adapt.quantised import (
    MODES,
    QuantExperts,
    QuantLinear,
    QuantMLP,
    check_quantised,
    install_quantised,
    quantise_model,
    quantised_state,
)
from arcforge_core.ops.dispatch import Ops, default_ops
from arcforge_core.ops.quant import INT4, INT4_GROUP_32, INT8, dequantise, quantise
from arcforge_core.testing.small_models import small_config, small_model

SIZES = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "q_lora_rank": 32, "v_head_dim": 32}
TOKENS = torch.arange(40).remainder(37)


def model(seed=0, **changes):
    return small_model(seed, **{**SIZES, **changes})


def logits(model):
    with torch.inference_mode():
        return model(TOKENS, SequenceBatch.build([len(TOKENS)])).logits


def num_bytes(module):
    held = {x.data_ptr(): x for x in [*module.parameters(), *module.buffers()]}
    return sum(x.numel() * x.element_size() for x in held.values())


@pytest.mark.parametrize("mode", MODES)
def test_what_is_quantised_follows_the_recipe(mode):
    """Spec 15: first projections into latents, the indexer's keys and weights, kv_b and the head stay wide."""
    quantised = model()
    quantise_model(quantised, mode)
    found = {path: m.form for path, m in quantised.named_modules() if isinstance(m, QuantLinear | QuantExperts)}
    linear, experts = {"w8a8": (INT8, INT8), "w4a8": (INT8, INT4), "int4": (INT4_GROUP_32, INT4_GROUP_32)}[mode]
    wanted = {"model.layers.1.mlp.experts": experts}
    for layer in (0, 1):
        wanted |= {f"model.layers.{layer}.self_attn.{name}": linear for name in ("q_b_proj", "o_proj")}
    for parent in ("model.layers.0.mlp", "model.layers.1.mlp.shared_experts"):
        wanted |= {f"{parent}.{name}": linear for name in ("gate_proj", "up_proj", "down_proj")}
    if mode == "int4":
        wanted["lm_head"] = INT4_GROUP_32
    assert found == wanted
    assert isinstance(quantised.model.layers[0].mlp, QuantMLP)


@pytest.mark.parametrize(("mode", "bound"), [("w8a8", 0.05), ("w4a8", 0.15), ("int4", 0.4)])
@pytest.mark.parametrize("ops", ["reference", "kernels"])
def test_logits_move_by_a_bounded_part(mode, bound, ops):
    """Root mean square, relative; random weights, far from small, are the worst case. No choice of experts may flip."""
    made = model(num_experts_per_tok=4)
    made.ops = Ops(None) if ops == "reference" else default_ops()
    made.rebind()
    wide = logits(made)
    quantise_model(made, mode)
    error = float((logits(made) - wide).norm() / wide.norm())
    assert bound / 10 < error < bound


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_saved_and_nothing_wide_is_kept(mode):
    sizes = {"hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 128, "q_lora_rank": 32}
    made = model(
        **sizes, num_hidden_layers=1, first_k_dense_replace=0, tie_word_embeddings=True, mtp=MtpConfig(depths=0)
    )
    place = made.model.layers[0].mlp.experts.gate_up_proj
    forms, before = MODES[mode], num_bytes(made)
    experts, linears = made.model.layers[0].mlp.experts, 0
    wanted = before - num_bytes(experts)
    for parameter in experts.parameters():
        wanted += forms.experts.num_bytes(parameter[..., 0].numel(), parameter.shape[-1])
    for path, module in made.named_modules():
        name = path.rpartition(".")[2]
        if path.startswith("model.layers") and name in ("q_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
            linears += 1
            wanted += forms.linear.num_bytes(module.out_features, module.in_features) - 4 * module.weight.numel()
    if forms.head is not None:  # a copy of its own: the embedding stays wide
        wanted += forms.head.num_bytes(made.config.vocab_size, 128)
    quantise_model(made, mode)
    assert linears == 5
    assert num_bytes(made) == wanted
    assert wanted < 0.55 * before
    assert not any(x is place for x in made.parameters())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tied", [False, True])
def test_an_update_takes_an_ordinary_state_dict(mode, tied):
    """And gives what a model of those weights would have been quantised to, where it lies; refusals change nothing."""
    changes = {"tie_word_embeddings": tied}
    made, other = model(**changes), model(seed=1, **changes)
    quantise_model(made, mode)
    state = {name: x for name, x in other.state_dict().items() if not (tied and name == "lm_head.weight")}
    places = {name: x.data_ptr() for name, x in made.state_dict().items()}
    before = logits(made)
    name = "model.layers.0.self_attn.o_proj.weight"
    for broken, wanted in (({name: state[name][:, :2]}, None), ({name: state[name] / 0}, None), ({}, "0" * 64)):
        with pytest.raises(CheckpointError):
            replace_weights(made, {**state, **broken}, "the update", wanted)
    with pytest.raises(CheckpointError, match="is missing"):
        replace_weights(made, {n: x for n, x in state.items() if n != name}, "the update")
    assert torch.equal(logits(made), before)
    replace_weights(made, state, "the update", checksum(state))
    quantise_model(other, mode)
    assert torch.equal(logits(made), logits(other))
    assert {name: x.data_ptr() for name, x in made.state_dict().items()} == places


def test_int4_is_the_model_of_the_dequantised_weights():
    """What training with ``dequantise(quantise(x))`` sees is what is served."""
    made, fake = model(), model()
    quantise_model(made, "int4")
    with torch.no_grad():
        for name, form in quantised_state(made).forms.items():
            stored = made.state_dict()
            parameter = fake.get_parameter(name)
            assert form == INT4_GROUP_32
            parameter.copy_(dequantise((stored[name], stored[f"{name}_scale"]), parameter.dtype))
    torch.testing.assert_close(logits(made), logits(fake))


def test_casts_leave_integers_and_scales():
    made = model()
    quantise_model(made, "int4")
    made.to(torch.bfloat16)
    assert made.model.layers[0].mlp.gate_proj.weight.dtype == torch.uint8
    assert made.model.layers[0].mlp.gate_proj.weight_scale.dtype == torch.float32
    assert made.model.layers[1].mlp.experts.down_proj_scale.dtype == torch.float32
    assert logits(made).dtype == torch.bfloat16


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"engine.weights='int5'.*none, w8a8, w4a8, int4"):
        SimpleEngineConfig(weights="int5")
    made = model()
    with pytest.raises(ConfigError, match=r"engine.weights='fp8'"):
        quantise_model(made, "fp8")
    made.train()
    with pytest.raises(ConfigError, match="training mode"):
        quantise_model(made, "int4")
    quantise_model(made.eval(), "w8a8")
    quantise_model(made, "w8a8")
    for other in ("int4", "none"):
        with pytest.raises(ConfigError, match="must be w8a8: the model is already quantised"):
            build_engine(SimpleEngineConfig(weights=other), made)


def test_widths_that_do_not_fit_are_refused_before_a_model_is_made():
    attention = model().attention
    check_quantised(small_config(), attention, "none")
    with pytest.raises(
        ConfigError, match=r"layers.0.self_attn.q_b_proj.weight: rows of 16 must be a multiple of the group size 32"
    ):
        check_quantised(small_config(), attention, "int4")
    with pytest.raises(ConfigError, match=r"layers.1.mlp.experts.down_proj: two int4 share a byte.*not 15"):
        check_quantised(small_config(moe_intermediate_size=15), attention, "w4a8")
    check_quantised(small_config(moe_intermediate_size=15), attention, "w8a8")


def test_a_quantised_model_is_not_saved(tmp_path):
    made = model()
    quantise_model(made, "int4")
    with pytest.raises(CheckpointError, match="weights in int4 cannot be saved"):
        save_pretrained(made, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_the_plain_engine_generates_with_them():
    made, wide = model(), model()
    engine = build_engine(SimpleEngineConfig(weights="w8a8"), made)
    params = SamplingParams(max_new_tokens=3, temperature=0.0)
    (out,), (plain,) = (e.generate([[1, 2, 3]], params) for e in (engine, build_engine(SimpleEngineConfig(), wide)))
    assert out.logprobs != plain.logprobs
    torch.testing.assert_close(torch.tensor(out.logprobs[0]), torch.tensor(plain.logprobs[0]), atol=0.2, rtol=0.0)


def test_experts_whose_rows_are_one_group_are_installed():
    """A file has one scale for a row of 32 columns in groups of 32, as for a row without groups."""
    path, names = "model.layers.1.mlp.experts", ("gate_up_proj", "down_proj")
    wanted, found = model(), model()
    quantise_model(wanted, "int4")
    experts = found.get_submodule(path)
    assert experts.down_proj.shape[-1] == 32
    integers = {name: quantise(getattr(experts, name).detach(), INT4_GROUP_32) for name in names}
    forms = {"gate_up_proj": INT4_GROUP_32, "down_proj": INT4}
    stored = {f"{path}.{name}": (integers[name], forms[name]) for name in names}
    install_quantised(found, stored, rounds=False)
    given = (torch.randn(5, 64), torch.randint(0, 4, (5, 2)), torch.rand(5, 2))
    assert torch.equal(found.get_submodule(path)(*given), wanted.get_submodule(path)(*given))
    with pytest.raises(CheckpointError, match="experts is quantised, but cannot be served so"):
        install_quantised(model(), {**stored, f"{path}.gate_up_proj": (integers["gate_up_proj"], INT8)}, rounds=False)
    with pytest.raises(CheckpointError, match="experts is quantised, but cannot be served so"):
        install_quantised(model(), {f"{path}.down_proj": stored[f"{path}.down_proj"]}, rounds=False)
