import tomllib
from pathlib import Path

import pytest

from arcforge_core import __version__
from arcforge_core.cli import main as cli

PACKAGES = Path(__file__).parents[3] / "packages"


def test_the_commands_are_the_console_scripts_of_our_packages():
    scripts = {}
    for file in PACKAGES.glob("*/pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        scripts |= dict.fromkeys(project.get("scripts", {}), project["name"])
    assert scripts.pop("arcforge") == "arcforge-core"
    assert scripts == {f"arcforge-{name}": wheel for name, (wheel, _) in cli.COMMANDS.items()}


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(capsys, argv):
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    for name, (_, summary) in cli.COMMANDS.items():
        assert f"{name:<12} {summary}" in out
    assert "doctor" in out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_a_command_runs_its_script(capsys, monkeypatch):
    monkeypatch.setattr(cli.sys, "argv", ["arcforge"])
    assert cli.main(["plugins"]) == 0
    assert "arcforge-core" in capsys.readouterr().out
    assert cli.sys.argv == ["arcforge-plugins"]


def test_an_absent_command_names_its_wheel(capsys, monkeypatch):
    monkeypatch.setattr(cli, "_script", lambda name: None)
    assert cli.main(["serve"]) == 2
    assert capsys.readouterr().err == (
        "error: arcforge-serve needs the package 'arcforge-serving': pip install arcforge-serving\n"
    )
    cli.main([])
    assert "[not installed: pip install arcforge-serving]" in capsys.readouterr().out


def test_an_unknown_command_suggests_the_nearest(capsys):
    assert cli.main(["trian"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err
