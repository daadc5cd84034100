"""``arcforge-swa-search``: finds the pattern of ``attention=swa_pattern``."""

from __future__ import annotations

from arcforge_attention.configs import SwaSearchConfig
from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.sweep import JobResult


def search(config: SwaSearchConfig) -> JobResult:
    """Searches; torch is imported here, so that ``--help`` and Tab completion do without."""
    from arcforge_attention.swa_command import search

    return search(config)


@run_main
def main() -> int:
    """Runs the command line."""
    return run_app("swa-search", SwaSearchConfig, search)
