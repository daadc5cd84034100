from pathlib import Path

from arcforge_core.config.docs import render, roots
from arcforge_core.plugins.commands import COMMANDS
from arcforge_core.plugins.loader import registry

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/config.md"


def test_config_page_is_current():
    """Lists all six packages' components, so that it needs them all."""
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m arcforge_core.config.docs docs/config.md"


def test_every_command_that_is_configured_is_on_the_page():
    jobs = {name for name, command in COMMANDS.items() if not command.main}
    assert jobs <= set(registry().jobs) and set(roots()) == {job.script for job in registry().jobs.values()}
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"\n## {script}\n" in page for script in roots())
