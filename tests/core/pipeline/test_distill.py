"""The stages that distillation adds to a pipeline, and its refusals."""

import pytest

from arcforge_core.errors import ConfigError
from arcforge_core.pipeline.distill import add_distillation
from arcforge_core.pipeline.recipe import Template

STAGES = [Template(name, "rl", (f"name={name}",)) for name in ("sft", "reasoning", "pairs", "general")]
PROMPTS = {"sft": ["environment.parts.chat=1"], "reasoning": ["environment.parts.sums=1"], "general": []}


def distilled(distill, stages=STAGES, init=None):
    return add_distillation(distill, stages, init)


def test_without_it_nothing_is_added():
    assert distilled({}) == STAGES


def test_it_follows_the_last_teacher_and_names_all():
    found = distilled({"prompts": PROMPTS, "overrides": ["algorithm=opd"]})
    assert found[:-1] == STAGES
    assert found[-1] == Template(
        "distill",
        "rl",
        (
            "algorithm=opd",
            "+teachers.sft='${stage:sft}'",
            "environment.parts.chat=1",
            "+teachers.reasoning='${stage:reasoning}'",
            "environment.parts.sums=1",
            "+teachers.general='${stage:general}'",
        ),
    )


def test_after_each_distils_from_the_second_teacher_on():
    found = distilled({"prompts": PROMPTS, "after_each": True, "job": "train"})
    names = ["sft", "reasoning", "distill_reasoning", "pairs", "general", "distill_general"]
    assert [stage.name for stage in found] == names
    assert [override for override in found[2].overrides if override.startswith("+teachers")] == [
        "+teachers.sft='${stage:sft}'",
        "+teachers.reasoning='${stage:reasoning}'",
    ]
    assert found[2].job == "train" and len(found[5].overrides) == 5


def test_the_first_checkpoint_may_teach_from_the_first_stage_on():
    given = {"prompts": {"init": ["x=1"], "reasoning": []}, "after_each": True}
    found = distilled(given, init="a folder's/model")
    assert [stage.name for stage in found] == ["sft", "reasoning", "distill_reasoning", "pairs", "general"]
    assert found[2].overrides[:2] == ("+teachers.init='a folder\\'s/model'", "x=1")


def test_rounds_of_a_group_teach_by_their_number():
    rounds = [Template("learn", "rl", (), round) for round in (1, 2)]
    assert [stage.full_name for stage in distilled({"prompts": {"learn_2": []}}, rounds)] == [
        "learn_1",
        "learn_2",
        "distill",
    ]


@pytest.mark.parametrize(
    ("given", "init", "refused"),
    [
        ({"prompt": {}}, None, r"distill\.prompt=\{\}: it has job, .*did you mean 'prompts'"),
        ({"prompts": {}}, None, r"distill\.prompts=\{\}: must name the stages that teach"),
        ({"after_each": True}, None, r"distill\.prompts=None: must name the stages that teach"),
        ({"prompts": PROMPTS, "after_each": "yes"}, None, r"distill\.after_each='yes': must be true or false"),
        ({"prompts": {"reasonin": []}}, None, r"distill\.prompts\.reasonin=\[\]: no stage.*did you mean 'reasoning'"),
        ({"prompts": {"sft": "a=1"}}, None, r"distill\.prompts\.sft='a=1': overrides are a list"),
        ({"prompts": PROMPTS, "overrides": [1]}, None, r"distill\.overrides=\[1\]: overrides are a list"),
        ({"prompts": {"init": [], "sft": []}}, None, r"distill\.prompts\.init=\[\]: needs a checkpoint"),
        ({"prompts": {"init": []}}, "model", r"distill\.prompts=.*: must name a stage besides init"),
    ],
)
def test_bad_options_are_one_line(given, init, refused):
    with pytest.raises(ConfigError, match=refused):
        distilled(given, init=init)


def test_a_stage_cannot_have_the_name_of_its_own():
    with pytest.raises(ConfigError, match=r"stages\.distill=.*is a name of distill's own stages"):
        distilled({"prompts": PROMPTS}, [*STAGES, Template("distill", "rl", ())])


def test_a_pipeline_composes_it(plan, tmp_path):
    pytest.importorskip("arcforge_rl")
    distill = {
        "overrides": ["algorithm=opd", "environment=mixture", "trainer.max_steps=3"],
        "prompts": {"base": ["+environment.parts.copy=1"], "last": []},
        "after_each": True,
    }
    stages = plan(distill=distill, extra={"distill_last": ["trainer.max_steps=5"]})
    assert [stage.folder for stage in stages] == ["1-base", "2-extend", "3-last", "4-distill_last"]
    config = stages[-1].config
    assert (config.init, config.trainer.max_steps) == ("RUN_OF_last", 5)
    assert {name: teacher.init for name, teacher in config.teachers.items()} == {
        "base": "RUN_OF_base",
        "last": "RUN_OF_last",
    }
    with pytest.raises(ConfigError, match="there are base, extend, last, distill_last"):
        plan(distill=distill, extra={"distill": ["trainer.max_steps=5"]})
