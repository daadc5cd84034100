"""`--config FILE` and `--help FIELD`."""

import sys

import pytest
import yaml

from arcforge_core.cli.main import run_command
from arcforge_core.config.compose import compose_config
from arcforge_core.config.config_file import with_file
from arcforge_core.config.schema import TrainConfig
from arcforge_core.errors import ConfigError
from arcforge_core.files.rundir import write_run_start


def composed(*arguments):
    return compose_config("train", TrainConfig, with_file("train", arguments))


def test_a_runs_own_file_gives_its_configuration_again(tmp_path):
    one = compose_config("train", TrainConfig, ["experiment=mini", "attention=gqa", "logger=[csv,tensorboard]",
                                                "optimizer.lr=0.1", "name='it is a run'"])  # fmt: skip
    write_run_start(tmp_path, one)
    assert composed("--config", str(tmp_path / "config.yaml")) == one
    assert composed("seed=3", f"--config={tmp_path / 'config.yaml'}").seed == 3


def test_a_resumed_runs_folder_is_not_taken(tmp_path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"folder": "outputs/a", "resume": "latest", "seed": 4}))
    found = composed("--config", str(tmp_path / "a.yaml"))
    assert (found.folder, found.resume, found.seed) == (None, None, 4)


def test_the_command_line_wins_and_a_chosen_group_replaces_the_files(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "attention: {name: mla, form: expanded}\nexperiment: smoke\ntrainer.minutes: 2\nmodel: {hidden_size: 64}\n"
    )
    found = composed("--config", str(file), "trainer.minutes=3", "attention=gqa")
    assert (found.attention.name, found.trainer.minutes, found.model.hidden_size, found.name) == ("gqa", 3, 64, "smoke")
    assert composed("--config", str(file)).attention.form == "expanded"


@pytest.mark.parametrize(("text", "message"), [
    (None, "no such file"), ("a: [", "cannot be read"), ("- 1\n", "must hold FIELD: VALUE pairs"),
])  # fmt: skip
def test_a_file_that_cannot_be_used(tmp_path, text, message):
    file = tmp_path / "a.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        composed("--config", str(file))


@pytest.mark.parametrize(("field", "lines"), [
    ("trainer.minutes", ["trainer.minutes: float or null, default null. Minutes of training"]),
    ("optimizer.lr", ["optimizer=adamw: optimizer.lr: float", "optimizer=muon_split: optimizer.lr: float"]),
    ("attention", ["attention (default mla): write attention=OPTION", "  gqa "]),
    ("trainer", ["trainer.max_steps: ", "trainer.precision: "]),
])  # fmt: skip
def test_help_of_a_field(capsys, monkeypatch, field, lines):
    monkeypatch.setattr(sys, "argv", ["arcforge-train", "--help", field])
    assert run_command("train") == 0
    printed = capsys.readouterr().out
    assert all(line in printed for line in lines)


def test_a_single_value_with_special_characters_is_a_list_of_one():
    assert compose_config("train", TrainConfig, ["trainer.trainable=a=b{c}"]).trainer.trainable == ["a=b{c}"]
    assert compose_config("train", TrainConfig, ["trainer.trainable=lm_head"]).trainer.trainable == ["lm_head"]
