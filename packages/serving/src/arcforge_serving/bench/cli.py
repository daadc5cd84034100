"""``arcforge-bench``: puts load on an OpenAI endpoint and measures its answers."""

from __future__ import annotations

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.sweep import JobResult
from arcforge_serving.bench.configs import BenchConfig


def bench(config: BenchConfig) -> JobResult:
    """Measures; what is heavy is imported here, so that ``--help`` and Tab completion do without."""
    from arcforge_serving.bench.run import run

    return run(config)


@run_main
def main() -> int:
    """Runs the command line."""
    return run_app("bench", BenchConfig, bench)
