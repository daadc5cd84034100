"""``arcforge-train``: composes a configuration and trains."""

from __future__ import annotations

import sys

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.schema import TrainConfig
from arcforge_core.config.sweep import JobResult
from arcforge_core.registry import registry


def train(config: TrainConfig) -> JobResult:
    """Trains as the procedure says; torch is imported here, so that ``--help`` and Tab completion do without."""
    from arcforge_core.train.resume import offer_resume

    if config.procedure.name == "one_run" and not {"-m", "--multirun"} & set(sys.argv):
        offer_resume(config)
    result: JobResult = registry().get("procedure", config.procedure.name).load()(config)
    return result


@run_main
def main() -> int:
    """Runs the command line."""
    return run_app("train", TrainConfig, train)
