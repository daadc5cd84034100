"""Recipes of ``arcforge-pipeline``: their stages follow each other, and the large one is the paper's."""

import functools
from itertools import pairwise

import pytest

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.config.compose import compose, compose_config
from arcforge_core.config.search_path import options
from arcforge_core.configs import PipelineConfig
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.pipeline.check import check_stages
from arcforge_core.pipeline.plan import CommandLine, plan_stages
from arcforge_core.testing.small_models import small_tokenizer

EXTENSIONS = {
    "glm5": ["mid_32k", "mid_128k", "mid_200k"],
    "long_context_small": ["extend_2k", "extend_8k", "extend_32k"],
}


@functools.cache
def stages_of(name, *overrides):
    return plan_stages(compose_config("pipeline", PipelineConfig, [f"pipeline={name}", *overrides]), CommandLine())


@pytest.mark.parametrize("name", EXTENSIONS)
def test_stages_fit_together(name):
    """On the meta device, the 744B model included."""
    stages = stages_of(name)
    assert len(check_stages(stages)) == len(stages)


@pytest.mark.parametrize("name", sorted({*options("pipeline")} - {*EXTENSIONS}))
def test_pipelines_from_a_checkpoint_fit_it(name, tmp_path):
    config = compose(["model=tiny", "optimizer=torch_adamw"])
    tokenizer = small_tokenizer()
    save_pretrained(build_model(config.model, config.attention, Ops(None)), tmp_path, tokenizer)
    recipe = compose_config("pipeline", PipelineConfig, [f"pipeline={name}", f"init={tmp_path}"])
    common = ["model=tiny", "trainer.sequence_length=128"]
    starts = check_stages(plan_stages(recipe, CommandLine(common=common)))
    assert any("starting from" in start for start in starts)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_contexts_grow_and_the_base_of_the_positions_changes_once(name):
    stages = stages_of(name)
    base, *later = [stage.config.model for stage in stages]
    assert base.rope_theta == 1e4 and {model.rope_theta for model in later} == {1e6}
    limits = [model.max_position_embeddings for model in (base, *later)]
    assert limits == sorted(limits) and limits[0] == stages[0].config.trainer.sequence_length
    assert stages[-1].config.trainer.sequence_length == limits[-1]
    assert [stage.config.attention.name for stage in stages] == ["mla"] * 4 + ["dsa"] * 2
    trained = [stage.config.attention for stage in stages[-2:]]
    assert [attention.indexer_training for attention in trained] == ["dense", "sparse"]


@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_rate_falls_linearly_through_the_extensions(name):
    """In tokens, from the end of the first stage's decay to the rate of the last one."""
    by_name = {stage.name: stage for stage in stages_of(name)}
    extensions = [by_name[stage] for stage in EXTENSIONS[name]]
    base, last = by_name[next(iter(by_name))].config, by_name["dsa_sparse"].config
    total, done = sum(stage.tokens for stage in extensions), 0
    start, end = base.optimizer.lr * base.schedule.final, last.optimizer.lr
    assert start == pytest.approx(4 * end)
    for stage in extensions:
        schedule, rate = stage.config.schedule, stage.config.optimizer.lr
        assert (schedule.name, schedule.shape, schedule.decay, schedule.warmup) == ("wsd", "linear", 1.0, 0.0)
        assert rate == pytest.approx(start + (end - start) * done / total, rel=1e-4)
        done += stage.tokens
        assert rate * schedule.final == pytest.approx(start + (end - start) * done / total, rel=1e-4)
    for one, other in pairwise([*extensions, by_name["dsa_sparse"]]):
        rates = [stage.config.optimizer.adamw_lr for stage in (one, other)]
        if None not in rates:
            assert rates[0] * one.config.schedule.final == pytest.approx(rates[1], rel=1e-4)


def test_glm5_has_the_paper_s_stages():
    stages = {stage.name: stage for stage in stages_of("glm5")}
    told = {
        "pretrain_4k": (4096, 27e12, 2e-4, 4e-5),
        "mid_32k": (32768, 1e12, 4e-5, 2.0645e-5),
        "mid_128k": (131072, 5e11, 2.0645e-5, 1.0968e-5),
        "mid_200k": (202752, 5e10, 1.0968e-5, 1e-5),
        "dsa_warmup": (202752, 1000 * 14 * 202752, 5e-3, 2e-4),
        "dsa_sparse": (202752, 2e10, 1e-5, 1e-5),
    }
    assert list(stages) == list(told)
    for name, (length, tokens, first, last) in told.items():
        config = stages[name].config
        assert config.trainer.sequence_length == config.model.max_position_embeddings == length
        assert stages[name].tokens == pytest.approx(tokens, rel=1e-3)
        assert config.optimizer.lr == pytest.approx(first, rel=1e-3)
        assert config.optimizer.lr * config.schedule.final == pytest.approx(last, rel=1e-3)
        assert config.model.hidden_size == 6144 and config.model.num_hidden_layers == 78
    warmup = stages["dsa_warmup"].config.trainer
    assert (warmup.max_steps, warmup.accumulate, warmup.micro_batch_tokens) == (1000, 14, 202752)
    assert warmup.trainable == [r"\.indexer\."]


def test_dsa_is_adapted_on_other_rows_than_those_before():
    for name in EXTENSIONS:
        *_, before, warmup, sparse = stages_of(name)
        assert len({stage.config.seed for stage in (before, warmup, sparse)}) == 3
