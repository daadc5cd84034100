"""Plays a task as its validator: the oracle must earn 1, silence, the question and every cheat 0, each time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from arcforge_core.contracts.environment import EpisodeFailure
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.episodes.scripted import play
from arcforge_core.errors import DataError
from arcforge_rl.environments.validate import scripts
from arcforge_rl.layers.store import LayerError
from arcforge_rl.layers.unknown import unknown_packages
from arcforge_rl.sandbox.sync import ATTEMPTS
from arcforge_rl.terminal.environment import Terminal, task_in
from arcforge_rl.terminal.harbor import HarborTask

SIDE_BY_SIDE = 2
"""Plays at a time."""


@dataclass
class Trial:
    """The result of a validation.

    Attributes:
        built: whether the world could be built.
        complaints: in words that the author can use; empty for a task that holds.
        plays: number of verdicts.
    """

    built: bool = False
    complaints: list[str] = field(default_factory=list)
    plays: int = 0


async def tried(environment: Terminal, harbor: HarborTask, repeats: int) -> Trial:
    """Plays all scripts of a task; further ones only if the oracle earns 1 at first.

    Args:
        environment: plays.
        harbor: the task.
        repeats: plays of each script.

    Raises:
        EpisodeFailure: the infrastructure broke, and broke once more.
    """
    task, trial = task_in(harbor), Trial()
    every = [(number, *each) for number, each in enumerate(scripts(environment, task))]

    async def once(number: int, kind: str, wanted: float, script: object) -> None:
        name = f"cheat {number - 2}" if kind == "cheat" else kind
        outcome = None
        for attempt in range(ATTEMPTS):
            try:
                outcome = (await play(environment, task, script))[1]  # type: ignore[arg-type]
                if outcome.failure is None:
                    break
            except (EpisodeFailure, SandboxFault):
                if attempt == ATTEMPTS - 1:
                    raise
        assert outcome is not None
        if outcome.failure is not None:
            raise EpisodeFailure(outcome.failure.kind, outcome.failure.reason)
        trial.plays += 1
        if outcome.reward != wanted:
            said = f"{name} earns {outcome.reward:g}, must earn {wanted:g}: {outcome.reasons['reward']}"
            if said not in trial.complaints:
                trial.complaints.append(said)

    try:
        await once(*every[0])
        trial.built = True
        rest = [one for repeat in range(repeats) for one in every[not repeat :]]

        async def work() -> None:
            while rest and not trial.complaints:
                await once(*rest.pop(0))

        if not trial.complaints:
            await asyncio.gather(*[work() for _ in range(SIDE_BY_SIDE)])
    except DataError as error:
        trial.complaints.append(f"the world cannot be built: {error}")
    except LayerError as error:
        if not (names := unknown_packages(str(error))):
            raise EpisodeFailure("environment", str(error)) from error
        trial.complaints.append(f"the world cannot be built: there is no package {', '.join(names)}")
    except SandboxFault as error:
        raise EpisodeFailure("sandbox", str(error)) from error
    return trial
