from pathlib import Path

from arcforge_core.config.docs import render

PAGE = Path(__file__).parents[2] / "docs/config.md"


def test_config_page_is_current():
    """Lists all six packages' components, so that it needs them all."""
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m arcforge_core.config.docs docs/config.md"
