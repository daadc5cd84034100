"""The command line of ``arcforge-pipeline``."""

import sys

import pytest

from arcforge_core.cli import pipeline as command
from arcforge_core.pipeline import run as pipeline_run

RECIPE = """\
# @package _global_
# Two small stages
name: mine
overrides: [model=tiny, attention=reference, optimizer=torch_adamw, schedule=constant, hardware=torch_cpu]
stages:
  one: [trainer.max_steps=1]
  two: [trainer.max_steps=2]
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the command in a project with a recipe; the pipeline itself only notes what it is given."""
    (tmp_path / "conf" / "pipeline").mkdir(parents=True)
    (tmp_path / "conf" / "arcforge.toml").touch()
    (tmp_path / "conf" / "pipeline" / "mine.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    given = []

    def note(config, line):
        given.append((config, line, sys.argv[1:]))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["arcforge-pipeline", *arguments])
        return command.main(), given

    monkeypatch.setattr(pipeline_run, "run_pipeline", note)
    return call


def test_the_recipe_and_the_overrides_arrive(run):
    arguments = ["pipeline=mine", "seed=3", "stages.two.trainer.max_steps=5", "resume=latest"]
    code, [(config, line, seen)] = run(*arguments)
    assert code == 0
    assert (config.name, config.resume, config.check) == ("mine", "latest", False)
    assert config.stages == {"one": ["trainer.max_steps=1"], "two": ["trainer.max_steps=2"]}
    assert line.common == ["seed=3"] and line.stages == {"two": ["trainer.max_steps=5"]}
    assert seen == arguments, "the command that resumes is made from these"


def test_stages_can_be_added_and_taken_out(run):
    code, [(config, _, _)] = run("pipeline=mine", "~stages.one", "+stages.three=['trainer.max_steps=3']")
    assert code == 0 and list(config.stages) == ["two", "three"]


def test_help_lists_recipes_and_says_how_stages_are_changed(run, capsys):
    code, given = run("--help")
    text = capsys.readouterr().out
    assert code == 0 and given == []
    assert "  mine                Two small stages  [project]" in text and "glm5" in text
    assert "stages.STAGE.FIELD=VALUE" in text and "pipeline (to be chosen)" in text


def test_the_recipe_can_be_shown(run, capsys):
    code, given = run("pipeline=mine", "seed=1", "--cfg", "job")
    assert code == 0 and given == [] and "name: mine" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pipeline=no_such"], "pipeline='no_such': accepted: demo, expert_iteration, general_chain, "),
        ([], "pipeline must be chosen, as pipeline=OPTION, of demo, expert_iteration, "),
        (["pipeline=mine", "seed=1,2", "-m"], "a pipeline cannot be swept; run it once for each value"),
        (["pipeline=mine", "check=perhaps"], "check='perhaps': must be bool"),
    ],
)
def test_errors_are_one_line(run, capsys, arguments, message):
    code, given = run(*arguments)
    assert code == 2 and given == []
    assert message in capsys.readouterr().err
