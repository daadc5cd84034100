"""What every command loads imports nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"
HEAVY = ("torch", "lightning", "numpy", "fastapi", "transformers", "matplotlib", "tensorboard", "tokenizers")
LIGHT = sorted(
    f"arcforge_{folder.name}.{module}"
    for folder in PACKAGES.iterdir()
    if (folder / "pyproject.toml").is_file()
    for module in ("plugin", "configs")
)


def heavy_after(statement):
    code = f"import sys\n{statement}\nprint(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_the_check_sees_a_heavy_import():
    assert heavy_after("import numpy") == ["numpy"]


@pytest.mark.parametrize("module", LIGHT)
def test_plugin_modules_and_schemas(module):
    assert heavy_after(f"import {module}") == []


@pytest.mark.parametrize(
    "statement",
    [
        "from arcforge_core.plugins.loader import load_plugins; load_plugins()",
        "from arcforge_core import registry; [c.load_schema() for c in registry()]",
        "from arcforge_core.cli.plugins import main; main([])",
        "from arcforge_core.cli.main import main; main(['--help'])",
        "from arcforge_core.config.help import render_help; render_help('train')",
        "from arcforge_core.cli.pipeline import main; sys.argv[1:] = ['--help']; main()",
        "from arcforge_core.config.compose import compose; compose([])",
    ],
)
def test_what_commands_do_before_work(statement):
    assert (
        heavy_after(f"import io, sys; out, sys.stdout = sys.stdout, io.StringIO()\n{statement}\nsys.stdout = out") == []
    )


def test_a_process_of_verifiers_starts_without_torch():
    assert "torch" not in heavy_after("import arcforge_core.episodes.killable, arcforge_core.episodes.base")
    assert "torch" not in heavy_after("import arcforge_rl.environments.math, arcforge_rl.environments.code")
