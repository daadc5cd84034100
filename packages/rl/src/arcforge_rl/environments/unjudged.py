"""An environment whose verifiers do not run, for objectives in which no reward counts."""

from __future__ import annotations

from typing import Any

from arcforge_core.contracts.environment import Agents, Environment, Episode, Outcome, Task

NOT_JUDGED = "not judged: no reward counts in this objective"
UNJUDGED = Outcome({"reward": 0.0}, {"reward": NOT_JUDGED})


class Unjudged:
    """Plays the tasks of another environment; every outcome is `UNJUDGED`.

    Args:
        environment: has the tasks and their program.
    """

    compares = False

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "score_group":  # the first is asked for by copies and pickles
            raise AttributeError(name)
        return getattr(self.environment, name)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Plays."""
        return await self.environment.run(task, agents)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        """Asks no verifier."""
        return UNJUDGED


def is_unjudged(outcome: Outcome) -> bool:
    """Returns whether no verifier has run."""
    return outcome.reasons.get("reward") == NOT_JUDGED
