"""``arcforge-rl``: improves a model by what it samples itself."""

from __future__ import annotations

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.sweep import JobResult
from arcforge_rl.configs_learning import RlConfig


def learn(config: RlConfig) -> JobResult:
    """Trains; torch is imported here, so that ``--help`` and Tab completion do without."""
    from arcforge_rl.learning.run import run

    return run(config)


@run_main
def main() -> int:
    """Runs the command line."""
    return run_app("rl", RlConfig, learn)
