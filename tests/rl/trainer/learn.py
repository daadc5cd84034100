"""``arcforge-rl`` in a process of its own, with rewards that chance earns, without the second that a report takes."""

import sys

from arcforge_core.cli.main import run_job
from arcforge_core.episodes.copy import ExactEnvironment
from arcforge_rl.trainer import run as run_module
from support.policies import reward_even

ExactEnvironment.exact = reward_even  # type: ignore[method-assign]
if "collection.orchestrator=process" in sys.argv:
    from arcforge_rl.orchestrator.process import source
    from support.orchestrated import build_learnable

    source.build_source = build_learnable
run_module.write_report = lambda run_dir: run_dir / "report.html"
if __name__ == "__main__":  # not in the orchestrator's process, which imports this file, too
    sys.exit(run_job("rl"))
