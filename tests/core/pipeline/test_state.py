"""The state on disk, and the changes allowed before a pipeline resumes."""

import json

import pytest

from arcforge_core.errors import CheckpointError
from arcforge_core.pipeline.state import FILE, PipelineState, take_up


@pytest.fixture
def begun(plan, tmp_path):
    """A run whose first stage is finished and whose second one was stopped."""
    state, folder = PipelineState.planned("small", plan(), {}), tmp_path / "run"
    state.stages[0].status, state.stages[0].figures = "finished", {"bits_per_byte": 2.5}
    state.stages[1].status = "interrupted"
    for number in ("1-base", "2-extend"):
        (folder / number).mkdir(parents=True)
    state.write(folder)
    return folder


def test_it_is_read_as_it_was_written(begun):
    state = PipelineState.read(begun)
    assert [record.status for record in state.stages] == ["finished", "interrupted", "planned"]
    assert state.status == json.loads((begun / FILE).read_text())["status"] == "interrupted"
    assert state.stages[0].figures == {"bits_per_byte": 2.5}
    assert state.stages[1].config["data"]["packing"] == "long_documents"
    for record in state.stages:
        record.status = "finished"
    assert state.status == "finished"


def test_nothing_else_is_in_the_folder_after_a_write(begun):
    assert {path.name for path in begun.iterdir()} == {FILE, "1-base", "2-extend"}


@pytest.mark.parametrize("content", ["", "[]", '{"name": 1}', '{"name": "x", "stages": [{"what": 3}]}'])
def test_a_damaged_state_is_named(begun, content):
    (begun / FILE).write_text(content)
    with pytest.raises(CheckpointError, match=r"run/pipeline\.json cannot be read"):
        PipelineState.read(begun)


def test_a_state_of_version_0_1_is_converted(begun, plan):
    """Its stages had no job and no folder of a result, a procedure, and an init that was the stage before."""
    content = json.loads((begun / FILE).read_text())
    del content["links"]
    for row in content["stages"]:
        del row["job"], row["dir"]
        row["config"] |= {"init": None, "procedure": None}
    (begun / FILE).write_text(json.dumps(content))
    state = PipelineState.read(begun)
    assert [(record.job, record.dir) for record in state.stages] == [("train", "")] * 3
    assert [record.config["init"] for record in state.stages] == [None, "RUN_OF_base", "RUN_OF_extend"]
    assert take_up(state, "small", plan(), begun) == [], "nothing of what has begun counts as changed"


def test_no_state_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"no run of a pipeline at .*it has no pipeline\.json"):
        PipelineState.read(tmp_path)


def test_the_same_plan_changes_nothing(begun, plan):
    state = PipelineState.read(begun)
    assert take_up(state, "small", plan(), begun) == []
    assert state == PipelineState.read(begun)


@pytest.mark.parametrize("stage", ["base", "extend"])
@pytest.mark.parametrize("override", ["optimizer.lr=0.5", "+trainer.extra.max_time=3", "data.long_repeats=2"])
def test_stages_that_have_begun_stay_as_they_were(begun, plan, stage, override):
    changes = [override, "data.packing=long_documents"]
    name = override.lstrip("+").partition("=")[0].replace(".", r"\.")
    with pytest.raises(CheckpointError, match=rf"stages\.{stage}\.{name} was .*, now .*remove .*run/[12]-{stage} and"):
        take_up(PipelineState.read(begun), "small", plan(extra={stage: changes}), begun)


def test_where_things_are_may_change(begun, plan, tmp_path):
    state = PipelineState.read(begun)
    assert take_up(state, "small", plan(f"data.cache_dir={tmp_path}", f"data.paths=[{tmp_path}]"), begun) == []


def test_fields_of_a_newer_version_do_not_count(begun, plan):
    state = PipelineState.read(begun)
    del state.stages[0].config["trainer"]["keep_best"]
    assert take_up(state, "small", plan(), begun) == []


def test_stages_to_come_may_change_and_it_is_told(begun, plan, recipe):
    state = PipelineState.read(begun)
    assert take_up(state, "small", plan(extra={"last": ["seed=5"]}), begun) == ["stages.last.seed was 0, now 5"]
    assert state.stages[2].config["seed"] == 5
    base, extend, last = recipe().stages.items()
    told = take_up(state, "small", plan(stages=dict([base, extend, ("more", last[1])])), begun)
    assert told == ["stages.more is new", "stages.last is removed"]
    assert [record.folder for record in state.stages] == ["1-base", "2-extend", "3-more"]


def test_another_pipeline_or_other_stages_are_refused(begun, plan, recipe):
    state = PipelineState.read(begun)
    with pytest.raises(CheckpointError, match="it is a run of pipeline=small, not other"):
        take_up(state, "other", plan(), begun)
    with pytest.raises(CheckpointError, match="stages were base, extend, last, now base, last"):
        take_up(state, "small", [stage for stage in plan() if stage.name != "extend"], begun)


def test_a_removed_stage_begins_anew_with_what_it_is_now(begun, plan):
    (begun / "2-extend").rmdir()
    state = PipelineState.read(begun)
    assert take_up(state, "small", plan(extra={"extend": ["seed=5"]}), begun) == ["stages.extend.seed was 0, now 5"]
    assert [record.status for record in state.stages] == ["finished", "planned", "planned"]


def test_what_came_from_a_removed_stage_must_go_too(begun, plan):
    (begun / "1-base").rmdir()
    with pytest.raises(CheckpointError, match="1-base is missing, and 2-extend came from it"):
        take_up(PipelineState.read(begun), "small", plan(), begun)
