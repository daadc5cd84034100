"""Checkpoints by path and by name."""

import os

import pytest

from arcforge_core.errors import CheckpointError
from arcforge_core.files.find import DEMO_FOLDER, find_checkpoint
from arcforge_core.files.rundir import point_name


def run(folder, *steps):
    for step in steps:
        (folder / "checkpoints" / f"step-{step:08}").mkdir(parents=True)
    return folder


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_runs_last_checkpoint_by_path_and_by_name(project):
    made = run(project / "outputs" / "2031-01-01" / "12-00-00-mine", 5, 10)
    point_name(project / "outputs", "mine", made)
    assert find_checkpoint(made).name == "step-00000010"
    assert find_checkpoint("mine").resolve() == made / "checkpoints" / "step-00000010"


def test_of_a_run_and_a_pipeline_of_one_name_the_newer_is_found(project):
    for place, step in (("outputs", 1), ("outputs/pipelines", 2)):
        point_name(project / place, "same", run(project / place / "2031-01-01" / "a", step))
    for age, place in ((10, "outputs"), (20, "outputs/pipelines")):
        os.utime(project / place / "by-name" / "same", (age, age), follow_symlinks=False)
    assert find_checkpoint("same").name == "step-00000002"
    os.utime(project / "outputs/by-name/same", (30, 30), follow_symlinks=False)
    assert find_checkpoint("same").name == "step-00000001"


def test_a_path_comes_before_a_name_and_a_name_before_the_demo(project):
    assert find_checkpoint("demo") == DEMO_FOLDER
    point_name(project / "outputs", "demo", run(project / "outputs" / "2031-01-01" / "a", 3))
    assert find_checkpoint("demo").name == "step-00000003"
    run(project / "demo", 4)
    assert find_checkpoint("demo").name == "step-00000004"


def test_a_folder_without_a_model_hides_no_run_and_no_model_of_its_name(project):
    (project / "demo").mkdir()
    (project / "demo" / "notes.txt").write_text("mine")
    assert find_checkpoint("demo") == DEMO_FOLDER
    made = run(project / "outputs" / "2031-01-01" / "12-00-00-mine", 5)
    point_name(project / "outputs", "mine", made)
    (project / "mine").mkdir()
    assert find_checkpoint("mine").resolve() == made / "checkpoints" / "step-00000005"


def test_the_error_names_the_option_and_the_last_usable_run(project):
    with pytest.raises(
        CheckpointError, match=r"^init=gone: neither a model \(config.json\) nor a run with checkpoints$"
    ):
        find_checkpoint("gone", "init")
    run(project / "outputs" / "2031-01-01" / "a", 3)
    (project / "outputs" / "2031-01-02" / "refused").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"; the last run with checkpoints is outputs/2031-01-01/a$"):
        find_checkpoint("outputs/latest")
