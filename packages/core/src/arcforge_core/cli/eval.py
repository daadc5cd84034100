"""``arcforge-eval``: measures a checkpoint."""

from __future__ import annotations

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.schema import EvalConfig
from arcforge_core.config.sweep import JobResult


def evaluate(config: EvalConfig) -> JobResult:
    """Evaluates; torch is imported here, so that ``--help`` and Tab completion do without."""
    from arcforge_core.eval.run import evaluate

    return evaluate(config)


@run_main
def main() -> int:
    """Runs the command line."""
    return run_app("eval", EvalConfig, evaluate)
