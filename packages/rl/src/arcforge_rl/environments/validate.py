"""Implements ``arcforge-env validate``: the oracle must score 1; silence, the question and every cheat 0."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from arcforge_core.console.progress import track
from arcforge_core.console.result import Result
from arcforge_core.contracts.environment import Environment, Reply, Script, Task
from arcforge_core.episodes.loops import run_to_end
from arcforge_core.episodes.scripted import SILENCE, play
from arcforge_core.errors import ArcforgeError
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.commands import ValidateConfig


@dataclass
class Tally:
    """The results of one kind of script.

    Attributes:
        wanted: required reward.
        played: number of scripts.
        right: number of scripts with that reward.
        slowest: seconds of the slowest script.
        example: description of the first script with another reward.
    """

    wanted: float
    played: int = 0
    right: int = 0
    slowest: float = 0.0
    example: str = ""


def validate(config: ValidateConfig) -> Result:
    """Checks an environment as `run` does; returns the share of right scripts of each kind."""
    return Result(Path.cwd(), {kind: tally.right / tally.played for kind, tally in run(config).items()})


def run(config: ValidateConfig) -> dict[str, Tally]:
    """Plays all scripts, prints a table and returns it.

    Raises:
        ArcforgeError: a script has the wrong reward; the message names the first.
    """
    environment: Environment = registry().get("environment", config.environment.name).load()(config.environment)
    episodes = min(config.episodes, environment.num_tasks or config.episodes)
    tallies: dict[str, Tally] = {}
    for index in track(range(episodes), "checking", episodes):
        task = environment.task(index)
        for kind, wanted, script in scripts(environment, task):
            tally = tallies.setdefault(kind, Tally(wanted))
            start = time.perf_counter()
            outcome = run_to_end(play(environment, task, script))[1]
            tally.slowest = max(tally.slowest, time.perf_counter() - start)
            tally.played += 1
            failure = outcome.failure
            if failure is None and outcome.reward == wanted:
                tally.right += 1
            elif failure is not None:
                tally.example = (
                    tally.example or f"task {index} ({task.key[:60]}) failed: {failure.kind}: {failure.reason}"
                )
            elif not tally.example:
                said = " | ".join(reply.text for reply in script)[:80]
                reason = outcome.reasons["reward"]
                tally.example = f"task {index} ({task.key[:60]}): {said!r} earned {outcome.reward:g}: {reason}"
    _show(config.environment.name, tallies)
    for kind, tally in tallies.items():
        if tally.example:
            raise ArcforgeError(f"{config.environment.name}: {kind} must earn {tally.wanted:g}: {tally.example}")
    return tallies


def scripts(environment: Environment, task: Task) -> Iterator[tuple[str, float, Script]]:
    """Yields the scripts of a task: kind, required reward, replies."""
    yield "oracle", 1.0, environment.oracle(task)
    yield "silence", 0.0, SILENCE
    yield "question", 0.0, [Reply(task.prompt)]
    for cheat in environment.cheats(task):
        yield "cheat", 0.0, cheat


def _show(name: str, tallies: dict[str, Tally]) -> None:
    table = Table("replies", "must earn", "played", "right", "slowest", title=name)
    for kind, tally in tallies.items():
        row = (f"{tally.wanted:g}", str(tally.played), str(tally.right), f"{tally.slowest:.2f} s")
        table.add_row(kind, *row)
    Console(markup=False, highlight=False).print(table)
