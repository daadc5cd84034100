"""``arcforge-env``: rolls out an environment (``run``, or nothing), checks one (``validate``), offers one as a
task service (``serve``), starts one (``new``).

``arcforge-rl``: trains (nothing), or computes the rewards of recorded rollouts again (``rescore``).
"""

from __future__ import annotations

import sys

from arcforge_core.cli.errors import run_main
from arcforge_core.cli.main import run_job
from arcforge_core.errors import ArcforgeError, nearest

COMMANDS = ("run", "validate", "serve", "new")


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
        from arcforge_rl.environments.skeleton import main as new

        return new(sys.argv[2:])
    if first in COMMANDS:
        del sys.argv[1]
    return run_job({"validate": "env_validate", "serve": "env_serve"}.get(first, "env"))


@run_main
def rl() -> int:
    """Runs the command line of ``arcforge-rl``."""
    if sys.argv[1:2] == ["rescore"]:
        del sys.argv[1]
        return run_job("rl_rescore")
    return run_job("rl")
