"""The job ``rl``: trains here, or has the processes of the run started."""

from __future__ import annotations

from arcforge_core.console.progress import working
from arcforge_core.console.result import Result
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.learning import RlConfig


def run(config: RlConfig) -> Result:
    """Trains a policy by the configured launcher; see `arcforge_rl.trainer.run.run`.

    Raises:
        ArcforgeError: a part cannot work, or has ended; the error is the part's own.
    """
    with working("importing libraries"):
        launch = registry().get("launcher", config.launcher.name).load()
    found: Result = launch(config)
    return found
