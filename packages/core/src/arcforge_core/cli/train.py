"""``arcforge-train``: one training run, after an offer to resume the last one; ``stage=reward``: of a reward model."""

from __future__ import annotations

import shlex
import sys

from arcforge_core.cli.errors import run_main
from arcforge_core.cli.main import run_command, run_job
from arcforge_core.cli.procedures import replacement
from arcforge_core.config.schema import RunConfig
from arcforge_core.console.progress import say

REWARD = "stage=reward"
"""Selects the job that trains a reward model, which has options of its own."""


def offer(config: RunConfig) -> None:
    """Offers to resume the last run. Imports torch here, so that ``--help`` and Tab completion do not."""
    from arcforge_core.train.resume import offer_resume

    offer_resume(config)


@run_main
def main() -> int:
    """Runs the command line."""
    new = replacement(sys.argv[1:])
    if new:
        command, arguments = new
        say(f"procedure=NAME ends with this version; type: arcforge {shlex.join([command, *arguments])}")
        sys.argv = [f"arcforge-{command}", *arguments]
        if command != "train":
            return run_command(command)
    if REWARD in sys.argv[1:]:
        sys.argv.remove(REWARD)
        return run_job("reward", offer)
    return run_job("train", offer)
