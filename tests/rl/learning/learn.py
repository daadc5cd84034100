"""A script for torchrun: ``arcforge-rl`` with rewards that chance earns, and without the second that a report takes."""

import sys

from arcforge_core.config.compose import compose_config
from arcforge_core.environments.copy import ExactEnvironment
from arcforge_core.testing.policies import reward_even
from arcforge_rl.configs_learning import RlConfig
from arcforge_rl.learning import run as run_module

ExactEnvironment.exact = reward_even  # type: ignore[method-assign]
run_module.write_report = lambda run_dir: run_dir / "report.html"
run_module.run(compose_config("rl", RlConfig, sys.argv[1:]))
