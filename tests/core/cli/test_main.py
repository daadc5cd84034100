import dataclasses
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from arcforge_core import __version__
from arcforge_core.cli import main as cli
from arcforge_core.plugins.commands import COMMANDS, SCRIPTLESS
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.registry import JobEntry, Registry

PACKAGES = Path(__file__).parents[3] / "packages"


def test_the_commands_are_the_console_scripts_of_our_packages():
    scripts = dict.fromkeys((f"arcforge-{name}" for name in SCRIPTLESS), "")
    for file in PACKAGES.glob("*/pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        assert set(project.get("scripts", {}).values()) <= {"arcforge_core.cli.main:main"}
        scripts |= dict.fromkeys(project.get("scripts", {}), project["name"])
    assert scripts.pop("arcforge") == "arcforge-core"
    assert scripts == {
        f"arcforge-{name}": "" if name in SCRIPTLESS else command.wheel for name, command in COMMANDS.items()
    }


def test_every_command_is_a_job_of_its_wheel_or_has_a_function():
    for name, command in COMMANDS.items():
        if not command.main:
            assert registry().job(name).distribution.split()[0] == command.wheel
        elif cli.installed(command.wheel):
            module, _, function = command.main.partition(":")
            assert callable(getattr(importlib.import_module(module), function))


def test_every_job_is_a_function_of_its_configuration():
    for job in registry().jobs.values():
        assert callable(job.load()), job
        assert dataclasses.is_dataclass(job.load_schema()), job


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(capsys, argv):
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    for name, (_, summary, _) in COMMANDS.items():
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
    monkeypatch.setattr(cli, "installed", lambda wheel: wheel != "arcforge-serving")
    assert cli.main(["serve"]) == 2
    assert capsys.readouterr().err == (
        "error: arcforge-serve needs the package 'arcforge-serving': pip install ./packages/serving\n"
    )
    cli.main([])
    assert "[not installed: pip install ./packages/serving]" in capsys.readouterr().out


def test_an_unknown_command_suggests_the_nearest(capsys):
    assert cli.main(["trian"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["arcforge_core", "arcforge_core.cli.main", "arcforge_rl", "arcforge_serving"])
def test_packages_run_as_modules(module):
    pytest.importorskip(module.partition(".")[0])
    done = subprocess.run([sys.executable, "-m", module, "plugns"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "did you mean 'plugins'" in done.stderr


def test_a_job_of_a_third_party_is_a_command(capsys, monkeypatch):
    job = JobEntry("acme", "acme.work:run", "acme.configs:Config", "arcforge acme", "do what Acme does", "acme 1.0")
    monkeypatch.setattr(cli, "registry", lambda: Registry(jobs={"acme": job}))
    ran = []
    monkeypatch.setattr(cli, "run_job", lambda name, after: ran.append(name) or 0)
    monkeypatch.setattr(sys, "argv", ["arcforge"])
    assert cli.main(["acme", "seed=1"]) == 0
    assert ran == ["acme"] and sys.argv == ["arcforge-acme", "seed=1"]
    cli.main([])
    assert "acme         do what Acme does  [acme 1.0]" in capsys.readouterr().out


def test_a_command_whose_plugin_is_not_loaded_says_so(capsys, monkeypatch):
    monkeypatch.setattr(cli, "registry", Registry)
    monkeypatch.setattr(sys, "argv", ["arcforge-serve"])
    assert cli.main() == 2
    assert "the plugin 'arcforge-serving' is not loaded; arcforge-plugins says why" in capsys.readouterr().err
