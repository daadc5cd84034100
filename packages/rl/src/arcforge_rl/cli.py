"""``arcforge-env``: rolls out an environment."""

from __future__ import annotations

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.sweep import JobResult
from arcforge_rl.configs import EnvConfig


def roll_out(config: EnvConfig) -> JobResult:
    """Rolls out; torch is imported here, so that ``--help`` and Tab completion do without."""
    from arcforge_rl.run import run

    return run(config)


@run_main
def main() -> int:
    """Runs the command line."""
    return run_app("env", EnvConfig, roll_out)
