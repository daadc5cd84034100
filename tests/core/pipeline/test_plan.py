"""Which argument is for which stage, and what the stages amount to."""

import shlex

import pytest
from tests.core.pipeline.conftest import STAGES

from arcforge_core.config.compose import compose
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.pipeline.plan import read_command_line


def test_arguments_are_sorted_by_what_they_are_for():
    line = read_command_line([
        "pipeline=small", "trainer.max_steps=3", "stages.extend.trainer.max_steps=10", "resume=latest", "seed=4",
        "stages.extend.+trainer.extra.a=[b,c.d]", "+stages.base.trainer.extra.b=1", "~data.paths", "--cfg", "job",
        "stages.last.attention=gqa", "+stages.new=[trainer.max_steps=3]", "~stages.base", "check=true",
        "+data@data.sources.code=stdlib", "name=x.y", "hydra.verbose=true",
    ])  # fmt: skip
    assert line.common == ["trainer.max_steps=3", "seed=4", "~data.paths", "+data@data.sources.code=stdlib"]
    assert line.stages == {
        "extend": ["trainer.max_steps=10", "+trainer.extra.a=[b,c.d]"],
        "base": ["+trainer.extra.b=1"],
        "last": ["attention=gqa"],
    }
    assert line.own == [
        "pipeline=small", "resume=latest", "--cfg", "job", "+stages.new=[trainer.max_steps=3]", "~stages.base",
        "check=true", "name=x.y", "hydra.verbose=true",
    ]  # fmt: skip


def test_completion_is_left_alone():
    assert read_command_line(["-sc", "install=bash"]).own == ["-sc", "install=bash"]


def test_later_overrides_win(plan):
    """The recipe's, its stage's, the command line's, its stage's."""
    assert [s.config.model.rope_theta for s in plan()] == [1e4, 1e6, 1e6]
    stages = plan("trainer.max_steps=7", "model.rope_theta=5", extra={"last": ["model.rope_theta=6", "seed=3"]})
    assert [s.config.trainer.max_steps for s in stages] == [7, 7, 7]
    assert [s.config.model.rope_theta for s in stages] == [5, 5, 6]
    assert [s.config.seed for s in stages] == [0, 0, 3]
    assert [(s.folder, s.config.name) for s in stages] == [
        ("1-base", "small-base"),
        ("2-extend", "small-extend"),
        ("3-last", "small-last"),
    ]
    assert [s.tokens for s in stages] == [7 * 256] * 3


def test_a_stage_s_command_amounts_to_its_configuration(plan):
    for stage in plan("+trainer.extra.limit_train_batches=3"):
        script, *overrides = shlex.split(stage.command())
        assert script == "arcforge-train" and compose(overrides) == stage.config


def test_a_budget_of_time_has_no_number_of_tokens(plan):
    assert plan("trainer.max_steps=null", "trainer.minutes=1")[0].tokens is None


def test_stages_start_from_the_training_stage_before_unless_they_say_otherwise(plan):
    for stages in (plan("init=outputs/latest"), plan(init="outputs/latest")):
        assert [s.config.init for s in stages] == ["outputs/latest", "RUN_OF_base", "RUN_OF_extend"]
        assert [s.source for s in stages] == [None, "base", "extend"]
    assert plan(extra={"base": ["init=a"]})[0].config.init == "a"
    stages = plan(init="with space's", extra={"extend": ["init=null"], "last": ["init=${stage:base}"]})
    assert [s.config.init for s in stages] == ["with space's", None, "RUN_OF_base"]


def test_a_reward_model_is_nobodys_beginning(plan):
    reward = {"job": "reward", "overrides": ["pairs.files=[pairs.jsonl]", "trainer.max_steps=1"]}
    stages = plan(stages={"base": STAGES["base"], "scorer": reward, "last": STAGES["last"]})
    assert [s.config.init for s in stages] == [None, "RUN_OF_base", "RUN_OF_base"]
    assert [s.is_run for s in stages] == [True] * 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("resume=latest", r"stages\.extend\.resume='latest': a stage is resumed with its pipeline"),
        ("output_dir=x", r"stages\.extend\.output_dir='x': a stage's folder is in that of its pipeline"),
        ("sweep=attention", r"stages\.extend\.sweep='attention': a stage is one run"),
        ("hydra.mode=MULTIRUN", r"stages\.extend\.hydra='MULTIRUN': a stage is one run"),
        ("trainer.max_stepz=3", r"stage extend: unknown field trainer\.max_stepz: .* did you mean 'max_steps'"),
        ("attention=no_such", r"stage extend: attention='no_such': accepted: "),
        ("trainer.sequence_length=4096", r"stage extend: trainer\.micro_batch_tokens=256: must be a multiple"),
        ("trainer.max_steps=1,2", r"stage extend: .*several values are a sweep"),
    ],
)
def test_what_a_stage_cannot_have_is_named(plan, override, message):
    with pytest.raises(ArcforgeError, match=message):
        plan(extra={"extend": [override]})


def test_a_stage_that_there_is_not(plan):
    with pytest.raises(ConfigError, match=r"stages\.extent=.*there are base, extend, last; did you mean 'extend'"):
        plan(extra={"extent": ["seed=1"]})


def test_recipes_need_stages_with_names(recipe, plan):
    with pytest.raises(ConfigError, match=r"stages=\{\}: a pipeline needs at least one"):
        recipe(stages={})
    for name in ("1st", "a-b", "a.b", ""):
        with pytest.raises(ConfigError, match=r"stages='.*names are letters, digits"):
            plan(stages={name: []})
