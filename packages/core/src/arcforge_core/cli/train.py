"""``arcforge-train``: composes a configuration and trains."""

from __future__ import annotations

import sys

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.schema import TrainConfig
from arcforge_core.config.sweep import JobResult


def train(config: TrainConfig) -> JobResult:
    """Trains; torch is imported here, so that ``--help`` and Tab completion do without."""
    from arcforge_core.train.resume import offer_resume
    from arcforge_core.train.run import train

    if not {"-m", "--multirun"} & set(sys.argv):
        offer_resume(config)
    return train(config)


@run_main
def main() -> int:
    """Runs the command line."""
    return run_app("train", TrainConfig, train)
