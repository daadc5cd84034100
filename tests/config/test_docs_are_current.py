import ast
from pathlib import Path

from arcforge_core.cli.main import COMMANDS
from arcforge_core.config.docs import render, roots

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/config.md"


def test_config_page_is_current():
    """Lists all six packages' components, so that it needs them all."""
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m arcforge_core.config.docs docs/config.md"


def test_every_command_that_is_configured_is_on_the_page():
    """By the calls of `run_app` in the packages' code, which name a primary configuration and its schema."""
    run = {
        (f"arcforge-{node.args[0].value.replace('_', ' ')}", node.args[1].id)
        for path in ROOT.glob("packages/*/src/**/*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run_app"
    }
    assert run == {(script, schema.__name__) for script, schema in roots().items()}
    assert {script.split()[0].removeprefix("arcforge-") for script, _ in run} <= set(COMMANDS)
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"\n## {script}\n" in page for script, _ in run)
