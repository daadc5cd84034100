"""``arcforge-conversations``: makes conversations whose answers can be checked."""

from __future__ import annotations

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_core.config.sweep import JobResult
from arcforge_rl.configs import ConversationsConfig


def make(config: ConversationsConfig) -> JobResult:
    """Makes them; what is heavy is imported here, so that ``--help`` and Tab completion do without."""
    from arcforge_rl.conversations.write import run

    return run(config)


@run_main
def main() -> int:
    """Runs the command line."""
    return run_app("conversations", ConversationsConfig, make)
