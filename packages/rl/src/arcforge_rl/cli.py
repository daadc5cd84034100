"""``arcforge-env``: rolls out an environment (``run``, or nothing), lists all (``list``), checks one (``validate``),
lets a person play (``play``), offers one as a task service (``serve``), writes one as a package for another library
(``export``), compares a judge with labels (``calibrate``), lets people judge (``label``), starts one (``new``), keeps
toolchains for sandboxes (``layers``), builds software engineering (``swe``), questions for searchers (``search``) and
tasks for a shell (``terminal``), selects decks (``slides``), and audits the dialogues of a benchmark (``tau2``).

``arcforge-rl``: trains (nothing), or computes the rewards of recorded rollouts again (``rescore``).
"""

from __future__ import annotations

import importlib
import sys

from arcforge_core.cli.errors import run_main
from arcforge_core.cli.main import run_job
from arcforge_core.errors import ArcforgeError, nearest

JOBS = {
    "validate": "env_validate",
    "serve": "env_serve",
    "calibrate": "env_calibrate",
    "label": "env_label",
    "play": "env_play",
    "export": "env_export",
}
OTHERS = {
    "new": "arcforge_rl.environments.skeleton:main",
    "list": "arcforge_rl.environments.by_hand:list_environments",
    "layers": "arcforge_rl.layers.command:main",
    "swe": "arcforge_rl.swe.command:main",
    "search": "arcforge_rl.search.command:main",
    "terminal": "arcforge_rl.terminal.command:main",
    "slides": "arcforge_rl.slides.command:main",
    "tau2": "arcforge_rl.dialogue.command:main",
}
COMMANDS = ("run", *JOBS, *OTHERS)


@run_main
def main() -> int:
    """Runs the command line.

    Raises:
        ArcforgeError: there is no such sub-command.
    """
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    if first and first not in COMMANDS and not first.startswith("-") and "=" not in first:
        raise ArcforgeError(f"no command {first!r}; commands: {', '.join(COMMANDS)}{nearest(first, COMMANDS)}")
    if first in OTHERS:
        module, _, function = OTHERS[first].partition(":")
        code: int = getattr(importlib.import_module(module), function)(sys.argv[2:])
        return code
    if first in COMMANDS:
        del sys.argv[1]
    return run_job(JOBS.get(first, "env"))


@run_main
def rl() -> int:
    """Runs the command line of ``arcforge-rl``."""
    if sys.argv[1:2] == ["rescore"]:
        del sys.argv[1]
        return run_job("rl_rescore")
    return run_job("rl")
