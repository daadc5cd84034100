"""``arcforge-eval``: measures a checkpoint."""

from __future__ import annotations

import dataclasses
import sys

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.schema import EvalConfig
from arcforge_core.config.sweep import JobResult
from arcforge_core.registry import registry


def evaluate(config: EvalConfig) -> JobResult:
    """Evaluates; torch is imported here, so that ``--help`` and Tab completion do without."""
    from arcforge_core.eval.run import evaluate

    return evaluate(config)


def with_suite(arguments: list[str]) -> list[str]:
    """Returns the arguments, with ``suite.`` before the options of suites that stand without it."""
    suites = [component.load_schema() for component in registry() if component.kind == "suite"]
    names = {field.name for schema in suites for field in dataclasses.fields(schema)}
    names -= {"name", *(field.name for field in dataclasses.fields(EvalConfig))}
    return [f"suite.{a}" if "=" in a and a.partition("=")[0] in names else a for a in arguments]


@run_main
def main() -> int:
    """Runs the command line."""
    sys.argv[1:] = with_suite(sys.argv[1:])
    return run_app("eval", EvalConfig, evaluate)
