"""``arcforge-env``: rolls out an environment (``run``, or nothing), checks one (``validate``), begins one (``new``)."""

from __future__ import annotations

import sys

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.sweep import JobResult
from arcforge_core.errors import ArcforgeError, nearest
from arcforge_rl.configs import EnvConfig, ValidateConfig

COMMANDS = ("run", "validate", "new")


def roll_out(config: EnvConfig) -> JobResult:
    """Rolls out; torch is imported here, so that ``--help`` and Tab completion do without."""
    from arcforge_rl.run import run

    return run(config)


def validate(config: ValidateConfig) -> None:
    """Checks."""
    from arcforge_rl.validate import run

    run(config)


@run_main
def main() -> int:
    """Runs the command line.

    Raises:
        ArcforgeError: there is no such sub-command.
    """
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    if first and first not in COMMANDS and not first.startswith("-") and "=" not in first:
        raise ArcforgeError(f"no command {first!r}; commands: {', '.join(COMMANDS)}{nearest(first, COMMANDS)}")
    if first == "new":
        from arcforge_rl.skeleton import main as new

        return new(sys.argv[2:])
    if first in COMMANDS:
        del sys.argv[1]
    if first == "validate":
        return run_app("env_validate", ValidateConfig, validate)
    return run_app("env", EnvConfig, roll_out)
