"""The runs of a variant: equal budgets, shared bases, rates, what each stage trains."""

import pytest

from arcforge_attention.ablation.stages import base_run, dense_attention, further_runs
from arcforge_attention.configs import (
    AblationConfig,
    AblationOptions,
    DsaConfig,
    GqaConfig,
    MlaConfig,
    SimpleGdnConfig,
    SwaConfig,
)
from arcforge_core.config.compose import compose_config
from arcforge_core.config.schema import TrainConfig
from arcforge_core.configs import PatternConfig, ReferenceAttentionConfig
from arcforge_core.errors import ConfigError

CORE = [
    "~experiment",
    "ablation.further_steps=10",
    "optimizer=torch_adamw",
    "schedule=constant",
    "ablation.base_steps=100",
]
VARIANTS = ("gqa", "mla", "dsa", "swa", "swa_pattern", "gdn", "simple_gdn")


def config_of(attention, *overrides):
    return compose_config("ablation", AblationConfig, [*CORE, f"attention={attention}", *overrides])


@pytest.mark.parametrize(
    ("variant", "base"),
    [
        (GqaConfig(qk_norm=True), GqaConfig(qk_norm=True)),
        (SwaConfig(window=7, bias=True), GqaConfig(bias=True)),
        (SimpleGdnConfig(beta=0.5), GqaConfig()),
        (DsaConfig(index_relu=False), MlaConfig()),
        (MlaConfig(form="expanded"), MlaConfig(form="expanded")),
    ],
    ids=lambda c: c.name,
)
def test_the_base_is_dense_with_the_shared_options(variant, base):
    assert dense_attention(variant) == base


def test_a_variant_without_a_dense_one_is_refused():
    for attention in (ReferenceAttentionConfig(), PatternConfig(pattern="G", kinds={"G": GqaConfig()})):
        with pytest.raises(ConfigError, match="must be gqa or mla"):
            dense_attention(attention)


def test_variants_of_a_seed_share_two_bases():
    bases = {name: base_run(config_of(name, "seed=3")) for name in VARIANTS}
    assert bases["mla"] == bases["dsa"] and bases["mla"].attention.name == "mla"
    assert all(bases[name] == bases["gqa"] for name in VARIANTS if name not in ("mla", "dsa"))
    assert bases["gqa"].trainer.max_steps == 100 and type(bases["gqa"]) is TrainConfig
    assert base_run(config_of("gqa", "seed=4")) != bases["gqa"]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_gets_the_same_steps_on_the_same_rows(name):
    config = config_of(name)
    stages = further_runs(config)
    assert sum(stage.trainer.max_steps for stage in stages) == 10
    assert {stage.seed for stage in stages} == {further_runs(config_of("gqa"))[0].seed} != {config.seed}
    assert {type(stage) for stage in stages} == {TrainConfig}
    assert stages[-1].optimizer.lr == pytest.approx(0.1 * config.optimizer.lr)
    assert (stages[-1].schedule.name, stages[-1].schedule.warmup, stages[-1].schedule.final) == ("constant", 0.0, 1.0)


def test_dsa_warms_its_indexer_up_first():
    config = config_of("dsa")
    warmup, sparse = further_runs(config)
    assert (warmup.trainer.max_steps, sparse.trainer.max_steps) == (3, 7)
    assert (warmup.attention.indexer_training, sparse.attention.indexer_training) == ("dense", "sparse")
    assert warmup.trainer.trainable == [r"\.indexer\."] and sparse.trainer.trainable == []
    assert warmup.optimizer.lr == 4 * config.optimizer.lr


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("ablation.further_steps=1", "further_steps"),
        ("ablation.base_steps=0", "base_steps"),
        ("ablation.tasks=[nonsense]", "tasks"),
        ("ablation.lengths=[]", "lengths"),
        ("ablation.depths=[0.33]", "depths"),
        ("ablation.window=0", "window"),
        ("ablation.interleave=FX", "interleave"),
        ("ablation.interleave=''", "interleave"),
    ],
)
def test_bad_options_are_refused_by_name(override, field):
    with pytest.raises(ConfigError, match=f"ablation.{field}"):
        config_of("dsa", override)


def test_the_share_is_at_most_a_twentieth_by_default():
    options = AblationOptions()
    assert options.further_steps <= 0.05 * (options.base_steps + options.further_steps)
