"""Words of released config.json files, and presets held against transformers' models on the meta device."""

import dataclasses

import pytest
import torch

from arcforge_core.checkpoint.hf import ARCHITECTURES
from arcforge_core.checkpoint.hf.architecture import TRAINING, dense_layers
from arcforge_core.checkpoint.hf.glm_moe_dsa import indexer_types
from arcforge_core.checkpoint.hf.links import links
from arcforge_core.checkpoint.sections import meta_model
from arcforge_core.config.compose import compose
from arcforge_core.config.schema import ModelConfig, RopeScalingConfig
from arcforge_core.errors import ConfigError
from arcforge_core.model.rope import attention_factor, softmax_factor

LLAMA = {
    "model_type": "llama", "vocab_size": 32, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
GLM4 = {**LLAMA, "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "head_dim": 10}


def read(model_type, config):
    return ARCHITECTURES[model_type].read(config, "config.json")


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_field_of_a_model_is_translated(architecture):
    config = {**GLM4, "model_type": architecture, "head_dim": 6}
    config |= {name: 6 for name in ARCHITECTURES[architecture].sizes if name not in config}
    assert read(architecture, config).model.keys() == {field.name for field in dataclasses.fields(ModelConfig)}


def test_absent_fields_mean_what_transformers_takes():
    model = read("llama", LLAMA).model
    assert (model["head_dim"], model["num_key_value_heads"], model["qk_rope_head_dim"]) == (6, 4, 6)
    assert (model["rms_norm_eps"], model["tie_word_embeddings"], model["rope_theta"]) == (1e-6, False, 1e4)
    model = read("glm4_moe", GLM4).model
    assert (model["qk_rope_head_dim"], model["first_k_dense_replace"], model["rms_norm_eps"]) == (5, 1, 1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", "factor": 8.0}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0}},
    ],
)
def test_rope_of_old_and_new_files(fields):
    model = read("llama", {**LLAMA, **fields}).model
    assert model["rope_theta"] == 5e5
    assert model["rope_scaling"]["type"] == "llama3" and model["rope_scaling"]["factor"] == 8.0
    assert model["rope_scaling"]["original_max_position_embeddings"] == 64


def test_rope_of_the_deepseek_v3_release():
    """Its `max_position_embeddings` is the stretched length; its factors are in the old field."""
    released = {
        "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    }  # fmt: skip
    config = {**LLAMA, "model_type": "deepseek_v3", "max_position_embeddings": 163840, "rope_scaling": released}
    config |= {name: 2 for name in ARCHITECTURES["deepseek_v3"].sizes if name not in config}
    scaling = RopeScalingConfig(**read("deepseek_v3", config).model["rope_scaling"])
    assert scaling == RopeScalingConfig("yarn", 40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    assert attention_factor(scaling) == 1.0
    assert softmax_factor(scaling) == pytest.approx(1.3688879454113936**2)


def test_partial_rotary_factor_stands_in_either_place():
    for fields in ({"partial_rotary_factor": 0.2}, {"rope_parameters": {"partial_rotary_factor": 0.2}}):
        assert read("glm4_moe", {**GLM4, **fields}).model["qk_rope_head_dim"] == 2


def test_index_share_of_glm_5_2():
    schedule = {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    full = [layer + 1 for layer, kind in enumerate(indexer_types(schedule, 78)) if kind == "full"]
    assert full == [1, 2, 3, *range(7, 76, 4)]
    assert indexer_types({"index_topk_pattern": "FSSF"}, 4) == ["full", "shared", "shared", "full"]
    assert indexer_types({"indexer_types": ["full", "shared"], **schedule}, 2) == ["full", "shared"]
    assert indexer_types({}, 3) == ["full"] * 3


def test_dense_layers():
    assert dense_layers({"mlp_layer_types": ["dense", "sparse"]}, 2, 0) == 1
    assert dense_layers({"first_k_dense_replace": 9}, 2, 1) == 2
    assert dense_layers({}, 2, 1) == 1
    with pytest.raises(ConfigError, match="leading dense layers followed by sparse ones"):
        dense_layers({"mlp_layer_types": ["sparse", "dense"]}, 2, 0)


@pytest.mark.slow(reason="imports transformers and builds its largest models on the meta device")
@pytest.mark.parametrize(("preset", "config_class"), [("glm5", "GlmMoeDsaConfig"), ("flash", "Glm4MoeLiteConfig")])
def test_presets_are_the_released_models(preset, config_class):
    """Transformers' defaults are the released sizes; theta is the one thing that they leave to the file."""
    pytest.importorskip("arcforge_attention")
    transformers = pytest.importorskip("transformers")
    released = getattr(transformers, config_class)(rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    chosen = compose([f"model={preset}", "optimizer=torch_adamw", "schedule=constant", "hardware=torch_cpu"])
    architecture = ARCHITECTURES[released.model_type]
    ours = read(released.model_type, released.to_dict()).model
    skipped = {*architecture.unused, *TRAINING}
    values = dataclasses.asdict(chosen.model)
    assert {n: v for n, v in values.items() if n not in skipped} == {n: v for n, v in ours.items() if n not in skipped}

    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(released)
    state = meta_model(chosen.model, chosen.attention, preset).state_dict()
    shapes = {name: tensor.shape for name, tensor in state.items() if not name.startswith("mtp.")}
    found = links(shapes, chosen.model.num_hidden_layers, {}, lambda name: True)
    parts = {
        name: part.shape for link in found for name, part in zip(link.theirs, link.split(state[link.ours]), strict=True)
    }
    assert parts == {name: tensor.shape for name, tensor in theirs.state_dict().items()}
