"""``python -m arcforge_rl.launch.roles``: a trainer or an orchestrator that a launcher has started.

Its errand is on standard input, so that keys are in no command line, and no option passes a shell or a parser again.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.cli.errors import run_main
from arcforge_core.plugins.loader import load_plugins
from arcforge_rl.configs.learning import RlConfig


@dataclass(frozen=True)
class Errand:
    """The work of a process.

    Attributes:
        role: ``trainer`` or ``orchestrator``.
        config: of the run, as the trainer gets it.
        arguments: of the command line that the user typed, with its program: the run's record names it.
        address: where trainer and orchestrator meet; None: no orchestrator is launched.
        key: that they know each other by.
        seconds: in which they must have met.
    """

    role: str
    config: RlConfig
    arguments: Sequence[str]
    address: str | tuple[str, int] | None
    key: bytes
    seconds: float


@run_main
def main() -> int:
    """Reads the errand and does it."""
    load_plugins()
    errand: Errand = pickle.load(sys.stdin.buffer)
    sys.argv = list(errand.arguments)
    from arcforge_rl.orchestrator.process.start import Meeting, meet

    if errand.role == "orchestrator":
        assert errand.address is not None
        meet(errand.address, errand.key, errand.seconds)
    if errand.address is not None:
        from arcforge_rl.orchestrator.process.source import expect_orchestrators

        expect_orchestrators(Meeting(errand.address, errand.key, errand.seconds))
    from arcforge_rl.trainer.run import run

    run(errand.config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
