"""Stages of any job, groups that repeat, and references between stages."""

import pytest

from arcforge_core.config.schema import EvalConfig
from arcforge_core.errors import ConfigError, UnknownComponentError
from arcforge_core.pipeline.recipe import filled, refer

EVAL = {"job": "eval", "overrides": ["data=files", "functions=3"]}
BASE = ["trainer.sequence_length=32", "model.max_position_embeddings=48"]


def test_a_stage_is_any_job(plan):
    """Its weights are those of the last training stage unless it names others; common options are for training."""
    stages = plan(stages={"before": EVAL, "base": BASE, "after": EVAL}, init="some/model")
    before, base, after = stages
    assert [stage.job.name for stage in stages] == ["eval", "train", "eval"]
    assert isinstance(after.config, EvalConfig) and after.config.suite.functions == 3
    assert before.config.checkpoint == base.config.init == "some/model"
    assert after.command() == "arcforge-eval data=files functions=3 checkpoint=RUN_OF_base"
    own = {"after": ["checkpoint=other", "suite.seed=4"]}
    assert plan(stages={"base": BASE, "after": EVAL}, extra=own)[1].config.checkpoint == "other"


def test_stages_refer_to_earlier_ones(plan):
    assert plan(stages={"base": BASE, "hf": {"job": "convert"}})[1].config.output_dir == "RUN_OF_hf"
    convert = {"job": "convert", "overrides": ["output_dir=${stage:base}/hf"]}
    with pytest.raises(ConfigError, match=r"stages\.hf\.output_dir=.*a stage's folder is in that of its pipeline"):
        plan(stages={"base": BASE, "hf": convert})
    stages = plan(stages={"base": BASE, "last": ["data.paths=[${stage:base}/texts]"]})
    assert stages[1].config.data.paths == ["RUN_OF_base/texts"]
    places = {"base": "/runs/base, a"}
    assert filled(stages[1].config, places).data.paths == ["/runs/base, a/texts"]
    assert stages[1].config.data.paths == ["RUN_OF_base/texts"], "the plan stays as it is"
    message = r"stages\.base='\${stage:last}': only stages before it: there are none"
    with pytest.raises(ConfigError, match=message):
        plan(stages={"base": [*BASE, "init=${stage:last}"], "last": []})
    with pytest.raises(ConfigError, match="only stages before it: base; did you mean 'base'"):
        plan(stages={"base": BASE, "last": ["init=${stage:bas}"]})


def test_a_group_repeats_with_the_output_of_the_round_before(plan):
    rounds = {"repeat": 2, "stages": {"measure": EVAL, "learn": ["data.paths=[a,${rounds:measure}/kept]"]}}
    stages = plan(stages={"base": BASE, "rounds": rounds, "last": {"job": "eval"}}, extra={"learn": ["seed=5"]})
    assert [stage.folder for stage in stages] == [
        "1-base", "2-measure_1", "3-learn_1", "4-measure_2", "5-learn_2", "6-last",
    ]  # fmt: skip
    _, _, first, measured, second, last = (stage.config for stage in stages)
    assert (first.init, measured.checkpoint, second.init) == ("RUN_OF_base", "RUN_OF_learn_1", "RUN_OF_learn_1")
    assert last.checkpoint == "RUN_OF_learn_2"
    assert first.data.paths == ["a", "RUN_OF_measure_1/kept"]
    assert second.data.paths == ["a", "RUN_OF_measure_1/kept", "RUN_OF_measure_2/kept"]
    assert (first.seed, second.seed) == (5, 6), "each round draws other rows"
    assert (first.name, second.name) == ("small-learn_1", "small-learn_2")
    assert len(plan(stages={"base": BASE, "rounds": rounds}, extra={"rounds": ["repeat=3"]})) == 7


def test_placeholders_of_names_that_begin_alike_are_told_apart():
    before = {"a": ["a"], "a_1": ["a_1"]}
    text = refer("${stage:a}/x,${stage:a_1}/x", "b", before)
    assert filled([text, {"k": text}, 3], {"a": "A", "a_1": "B"}) == ["A/x,B/x", {"k": "A/x,B/x"}, 3]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"base": "model=tiny"}, r"stages\.base='model=tiny': a stage is a list of overrides, or has job"),
        ({"base": {"jobs": "eval"}}, r"stages\.base=.*a stage is a list of overrides, or has job"),
        ({"base": [{"seed": 3}]}, r"stages\.base=.*overrides are a list of FIELD=VALUE"),
        ({"base": {"overrides": "seed=3"}}, r"stages\.base='seed=3': overrides are a list"),
        ({"rounds": {"stages": {}}}, r"stages\.rounds=.*a group has repeat and stages"),
        ({"rounds": {"stages": {"base": BASE}, "job": "eval"}}, r"stages\.rounds=.*a group has repeat and stages"),
        ({"rounds": {"repeat": 0, "stages": {"base": BASE}}}, r"stages\.rounds\.repeat=0: must be a whole number"),
        ({"a": BASE, "rounds": {"stages": {"a": BASE}}, "a_1": BASE}, r"stages='a_1': names must differ"),
        ({"base": {"job": "pipeline"}}, r"stages\.base\.job='pipeline': a stage cannot be a pipeline"),
    ],
)
def test_what_is_no_stage_is_refused(plan, stages, message):
    with pytest.raises(ConfigError, match=message):
        plan(stages=stages)


def test_options_of_a_group_and_unknown_jobs_are_refused(plan):
    rounds = {"repeat": 2, "stages": {"base": BASE}}
    with pytest.raises(ConfigError, match=r"stages\.rounds='seed=3': a group of stages has only repeat=N"):
        plan(stages={"rounds": rounds}, extra={"rounds": ["seed=3"]})
    with pytest.raises(UnknownComponentError, match=r"stage base: no job 'evla'; there are .*did you mean 'eval'"):
        plan(stages={"base": {"job": "evla"}})
