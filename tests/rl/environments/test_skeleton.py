"""`arcforge-env new` writes a package whose own tests pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arcforge_core.errors import ConfigError
from arcforge_rl.environments.skeleton import main, write


@pytest.mark.slow(reason="runs the suite of a new package in a process of its own")
def test_the_package_passes_its_own_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["word_count", "--to", str(tmp_path)]) == 0
    folder = tmp_path / "word-count-environment"
    assert capsys.readouterr().out.splitlines()[-1] == "arcforge-env validate environment=word_count"
    assert not [path for path in folder.rglob("*") if path.is_file() and "$" in path.read_text()]
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(folder / "tests")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=250)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_plugin_registers_it(tmp_path: Path) -> None:
    folder = write("letters", tmp_path)
    code = (
        "from letters_environment import plugin\n"
        "class Registrar:\n"
        "    def add(self, kind, name, target, schema, summary): print(kind, name, target, schema)\n"
        "plugin.arcforge_register_components(Registrar())\n"
        "from letters_environment.configs import LettersConfig\n"
        "from letters_environment.environment import Letters\n"
        "print(Letters(LettersConfig()).task(0).key)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert "environment letters letters_environment.environment:Letters letters_environment.configs:LettersConfig" in (
        done.stdout
    )
    assert "letters/" in done.stdout


@pytest.mark.parametrize("name", ["Upper", "1st", "a-b", "class", "", "../up", "copy"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name="):
        write(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write("letters", tmp_path)
    with pytest.raises(ConfigError, match="exists already"):
        write("letters", tmp_path)
