"""``arcforge-sample``: tries problems several times and keeps the right tries."""

from __future__ import annotations

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.sweep import JobResult
from arcforge_rl.configs import SampleConfig


def sample(config: SampleConfig) -> JobResult:
    """Samples; torch is imported here, so that ``--help`` and Tab completion do without."""
    from arcforge_rl.sampling.command import run

    return run(config)


@run_main
def main() -> int:
    """Runs the command line."""
    return run_app("sample", SampleConfig, sample)
