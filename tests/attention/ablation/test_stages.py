"""The runs of a variant: equal budgets, shared bases, rates, what each stage trains."""

import pytest

from arcforge_attention.ablation.stages import base_run, dense_attention, further_runs
from arcforge_attention.configs import AblationConfig, DsaConfig, GqaConfig, MlaConfig, SimpleGdnConfig, SwaConfig
from arcforge_core.config.compose import compose
from arcforge_core.configs import PatternConfig, ReferenceAttentionConfig
from arcforge_core.errors import ConfigError

CORE = ["procedure=attention_ablation", "optimizer=torch_adamw", "schedule=constant", "procedure.base_steps=100"]
VARIANTS = ("gqa", "mla", "dsa", "swa", "swa_pattern", "gdn", "simple_gdn")


def config_of(attention, *overrides):
    return compose([*CORE, f"attention={attention}", "procedure.further_steps=10", *overrides])


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
    assert bases["gqa"].trainer.max_steps == 100 and bases["gqa"].procedure.name == "one_run"
    assert base_run(config_of("gqa", "seed=4")) != bases["gqa"]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_gets_the_same_steps_on_the_same_rows(name):
    config = config_of(name)
    stages = further_runs(config)
    assert sum(stage.trainer.max_steps for stage in stages) == 10
    assert {stage.seed for stage in stages} == {further_runs(config_of("gqa"))[0].seed} != {config.seed}
    assert {stage.procedure.name for stage in stages} == {"one_run"}
    assert stages[-1].optimizer.lr == pytest.approx(0.1 * config.optimizer.lr)
    assert (stages[-1].schedule.name, stages[-1].schedule.warmup, stages[-1].schedule.final) == ("constant", 0.0, 1.0)


def test_dsa_warms_its_indexer_up_first():
    config = config_of("dsa", "procedure.warmup_share=0.3", "procedure.warmup_rate=2.0")
    warmup, sparse = further_runs(config)
    assert (warmup.trainer.max_steps, sparse.trainer.max_steps) == (3, 7)
    assert (warmup.attention.indexer_training, sparse.attention.indexer_training) == ("dense", "sparse")
    assert warmup.trainer.trainable == [r"\.indexer\."] and sparse.trainer.trainable == []
    assert warmup.optimizer.lr == 2 * config.optimizer.lr


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("procedure.warmup_share=0", "warmup_share"),
        ("procedure.warmup_share=1", "warmup_share"),
        ("procedure.base_steps=0", "base_steps"),
        ("procedure.tasks=[nonsense]", "tasks"),
        ("procedure.lengths=[]", "lengths"),
        ("procedure.depths=[0.33]", "depths"),
        ("procedure.window=0", "window"),
        ("procedure.interleave=FX", "interleave"),
        ("procedure.interleave=''", "interleave"),
    ],
)
def test_bad_options_are_refused_by_name(override, field):
    with pytest.raises(ConfigError, match=f"procedure.{field}"):
        config_of("dsa", override)


def test_the_share_is_at_most_a_twentieth_by_default():
    options = AblationConfig()
    assert options.further_steps <= 0.05 * (options.base_steps + options.further_steps)
