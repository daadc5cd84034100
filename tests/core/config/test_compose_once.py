"""Compositions that choose the same options read their files once, and equal those that read them each time."""

import copy

import hydra
import pytest
from hydra.core.config_store import ConfigStore

from arcforge_core.config import compose as compose_module
from arcforge_core.config.compose import compose, compose_config
from arcforge_core.config.schema import EvalConfig, TrainConfig
from arcforge_core.errors import ArcforgeError

CORE = ("attention=reference", "optimizer=torch_adamw", "schedule=constant")
FIELDS = [
    [],
    ["seed=3", "name=one"],
    ["seed=3", "seed=4"],
    ["model.hidden_size=64", "model.mtp.depths=1"],
    ["trainer.minutes=null", "trainer.max_steps=7"],
    ["+trainer.extra.a=1", "++trainer.extra.b={c: [1, 2]}"],
    ["output_dir=${oc.env:HOME}/here", "name=${model.name}"],
    ["data=mixture", "+data@data.sources.code=stdlib", "+data.weights.code=2.0"],
    ["model={vocab_size: 700}", "model.vocab_size=800"],
    ["model.vocab_size=800", "model={vocab_size: 700}"],
    ["logger=[csv]"],
]


@pytest.fixture
def read(monkeypatch):
    """The options of every composition that Hydra makes from files, with nothing kept from earlier tests."""
    made, original = [], hydra.compose
    compose_module._merged.cache_clear()

    def counted(config_name, overrides, **others):
        made.append(overrides)
        return original(config_name, overrides, **others)

    monkeypatch.setattr(hydra, "compose", counted)
    yield made
    compose_module._merged.cache_clear()


@pytest.mark.parametrize("fields", FIELDS, ids=" ".join)
def test_a_kept_composition_equals_one_that_hydra_makes_whole(fields, read, monkeypatch):
    compose([*CORE, *[field for field in fields if field.startswith(("data=", "+data@", "logger"))]])
    kept = compose([*CORE, *fields])
    monkeypatch.setattr(compose_module, "_sets_field", lambda argument, names: False)
    compose_module._merged.cache_clear()
    assert kept == compose([*CORE, *fields])
    assert read[-1] == [*CORE, *fields], "the second one was Hydra's"


def test_fields_need_no_second_reading_and_options_do(read):
    for number in range(3):
        assert compose([*CORE, "model=tiny", f"seed={number}", f"trainer.max_steps={number + 1}"]).seed == number
    assert compose([*CORE, "model=tiny"]).seed == TrainConfig().seed != 2, "no field stays from the ones before"
    assert read == [[*CORE, "model=tiny"]]
    assert compose([*CORE, "model=mini", "seed=1"]).model.name == "mini"
    assert compose_config("eval", EvalConfig, ["checkpoint=x"]).checkpoint == "x"
    assert len(read) == 3


def test_two_configurations_share_nothing(read):
    first = compose(CORE)
    expected = copy.deepcopy(first)
    first.trainer.extra["spoilt"] = True
    first.model.hidden_size = -1
    assert compose(CORE) == expected
    assert len(read) == 1


def test_a_changed_recipe_is_read_again(read, tmp_path, monkeypatch):
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/arcforge.toml").touch()
    monkeypatch.chdir(tmp_path)
    for seed in (7, 88, 999):
        (tmp_path / "conf/experiment/mine.yaml").write_text(f"# @package _global_\nseed: {seed}\n")
        assert compose([*CORE, "experiment=mine"]).seed == seed
    (tmp_path / "conf/experiment/mine.yaml").unlink()
    with pytest.raises(ArcforgeError):
        compose([*CORE, "experiment=mine"])


def test_a_wrong_field_is_refused_alike_the_second_time(read):
    compose(CORE)
    for _ in range(2):
        with pytest.raises(ArcforgeError, match=r"trainer.max_steps='abc': must be int or null"):
            compose([*CORE, "trainer.max_steps=abc"])
        with pytest.raises(ArcforgeError, match="several values are a sweep, add -m"):
            compose([*CORE, "seed=1,2"])


def test_hydra_copies_no_components(monkeypatch):
    """It copies its sources for each composition, which would copy the schemas of all components with them."""
    compose(CORE)
    store = ConfigStore.instance()
    assert copy.deepcopy(store) is store
    loaded = store.load("attention/reference.yaml")
    loaded.node.name = "spoilt"
    assert store.load("attention/reference.yaml").node.name == "reference"
