"""Every option of every group composes alone, and every recipe whole, whoever brings it."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from arcforge_core.config.compose import compose, compose_config
from arcforge_core.config.schema import AdapterConfig, ComponentConfig, ModelConfig, TrainConfig
from arcforge_core.config.search_path import options, presets
from arcforge_core.configs import PipelineConfig
from arcforge_core.errors import ArcforgeError
from arcforge_core.pipeline.plan import CommandLine, plan_stages
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.learning import RlConfig
from support.marks import nightly_case

ROOT = Path(__file__).parents[2]
GROUPS = [
    name
    for name, hint in get_type_hints(TrainConfig).items()
    if isinstance(hint, type) and issubclass(hint, ComponentConfig | ModelConfig)
]
RECIPES = [(preset.group, preset.name) for preset in presets() if preset.group not in registry().kinds()]


def test_groups_are_found():
    assert set(GROUPS) == {"attention", "model", "optimizer", "schedule", "data", "hardware"}


@pytest.mark.parametrize(("group", "option"), [(group, option) for group in GROUPS for option in options(group)])
def test_option_alone(group, option):
    chosen = getattr(compose([f"{group}={option}"]), group)
    assert dataclasses.is_dataclass(chosen)
    if option in registry().names(group):
        assert chosen == registry().get(group, option).load_schema()(name=option)


@pytest.mark.parametrize("command", [("train", TrainConfig), ("rl", RlConfig)])
@pytest.mark.parametrize("names", [[], *([name] for name in options("logger")), options("logger")])
def test_loggers_alone_and_together(command, names):
    config = compose_config(*command, [f"logger=[{','.join(names)}]", *(["init=x"] if command[0] == "rl" else [])])
    assert config.logger == {name: registry().get("logger", name).load_schema()() for name in names}


@pytest.mark.parametrize("component", list(registry()), ids=lambda c: f"{c.kind}-{c.name}")
def test_schema_is_a_dataclass_of_its_kind_that_names_itself(component):
    schema = component.load_schema()
    assert issubclass(schema, ComponentConfig)
    assert schema().name == component.name


@pytest.mark.parametrize(("group", "name"), RECIPES)
def test_recipe_whole(group, name):
    if group == "model":
        assert compose([f"model={name}"]).model.name == name
    elif group == "adapter":
        assert compose([f"adapter={name}"]).adapter == AdapterConfig(name=name)
    elif group == "stage":
        assert compose([f"stage={name}"]).attention.name in registry().names("attention")
    elif group == "experiment":
        assert compose([f"experiment={name}"]).name == name
    elif group == "pipeline":
        recipe = compose_config("pipeline", PipelineConfig, [f"pipeline={name}", "init=outputs/latest"])
        assert recipe.name == name and plan_stages(recipe, CommandLine())
    elif group == "budget":
        schema = registry().job("ablation").load_schema()
        whole = compose_config("ablation", schema)
        assert compose_config("ablation", schema, [f"budget={name}"]) != whole
    elif group == "recipe":
        assert compose_config("rl", RlConfig, [f"recipe={name}"]).name == name
    else:
        assert group == "sweep", "a new group of recipes needs a line here"
        for field, values in sweep_parameters(name).items():
            for value in values.split(","):
                compose([f"{field}={value}"])


def sweep_parameters(name):
    content = yaml.safe_load((ROOT / "conf/sweep" / f"{name}.yaml").read_text())
    return content["hydra"]["sweeper"]["params"]


@pytest.mark.parametrize("name", options("sweep"))
def test_sweep_sets_no_field_of_the_group_that_it_varies(name):
    content = yaml.safe_load((ROOT / "conf/sweep" / f"{name}.yaml").read_text())
    assert set(content) & {field.split(".")[0] for field in sweep_parameters(name)} == set()


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        (name, attention) if (n + m) % 3 == 0 else nightly_case(name, attention)
        for n, name in enumerate(options("experiment"))
        for m, attention in enumerate(options("attention"))
    ],
)
def test_experiments_can_be_swept_over_attention(name, attention):
    assert compose([f"experiment={name}", f"attention={attention}"]).attention.name == attention


@pytest.mark.parametrize(
    ("overrides", "attention"),
    [
        ([], "mla"),
        (["model=glm5"], "dsa"),
        (["model=glm5", "attention=mla"], "mla"),
        (["attention=gqa", "model=glm5"], "gqa"),
        (["model=flash"], "mla"),
    ],
)
def test_a_model_brings_its_attention_unless_another_is_asked_for(overrides, attention):
    assert compose(overrides).attention.name == attention


@pytest.mark.parametrize("name", options("model"))
def test_presets_write_every_size_out(name):
    path = ROOT / "packages/core/src/arcforge_core/conf/model" / f"{name}.yaml"
    text = yaml.safe_load(path.read_text())
    training = {"router_bias_rate", "balance_loss_weight"}
    assert {field.name for field in dataclasses.fields(ModelConfig)} - training <= set(text)


def test_glm5_is_the_released_model():
    model = dataclasses.asdict(compose(["model=glm5"]).model)
    released = {
        "vocab_size": 154880, "hidden_size": 6144, "num_hidden_layers": 78, "first_k_dense_replace": 3,
        "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "routed_scaling_factor": 2.5, "num_attention_heads": 64,
        "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
        "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "rope_theta": 1e6,
        "max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "initializer_range": 0.02,
    }  # fmt: skip
    assert {name: model[name] for name in released} == released


def test_an_absent_wheel_is_named():
    code = "from arcforge_core.config.compose import compose; compose(['attention=dsa'])"
    environment = {**os.environ, "ARCFORGE_BLOCK_PLUGINS": "arcforge-attention"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 1
    assert "attention=dsa needs the package 'arcforge-attention': pip install ./packages/attention" in done.stderr


def test_an_option_without_a_component_is_no_component():
    with pytest.raises(ArcforgeError, match="attention"):
        compose(["attention={name: mla}", "~attention"])
