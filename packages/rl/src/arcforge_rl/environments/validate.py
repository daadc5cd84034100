"""Implements ``arcforge-env validate``: the oracle must score 1; silence, the question and every cheat 0."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
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
from arcforge_rl.environments.validate_record import Play, PlayRecord


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
    """Plays all scripts `repeats` times, prints a table and returns it; plays that `results` holds are not repeated.

    Raises:
        ArcforgeError: a script has the wrong reward, or not the same each time; the message names the first.
    """
    environment: Environment = registry().get("environment", config.environment.name).load()(config.environment)
    record = PlayRecord(config)
    plays = _plays(environment, config)
    rows: list[Play] = []

    async def work() -> None:
        for index, task, (kind, wanted, script), number, repeat in plays:
            known = record.played.get((index, task.key, kind, number, repeat))
            if known is None:
                start = time.perf_counter()
                outcome = (await play(environment, task, script))[1]
                seconds = time.perf_counter() - start
                failed = outcome.failure
                reason = f"{failed.kind}: {failed.reason}" if failed else outcome.reasons["reward"]
                reward = None if failed else outcome.reward
                said = " | ".join(reply.text for reply in script)[:80]
                known = Play(index, task.key, kind, number, repeat, wanted, reward, reason, said, seconds)
                record.write(known)
            rows.append(known)

    async def all_of_them() -> None:
        await asyncio.gather(*[work() for _ in range(config.concurrency)])

    run_to_end(all_of_them())
    rows.sort(key=lambda row: (row.task, row.script, row.repeat))
    tallies = _count(rows)
    _show(config.environment.name, tallies, getattr(environment, "notice", ""))
    for kind, tally in tallies.items():
        if tally.example:
            flaky = "".join(f"; flaky: {line}" for line in unstable(rows))
            raise ArcforgeError(f"{config.environment.name}: {kind} must earn {tally.wanted:g}: {tally.example}{flaky}")
    return tallies


def unstable(rows: Sequence[Play]) -> list[str]:
    """Returns a line for each script whose plays did not all earn the same; failures of infrastructure do not count."""
    rewards: dict[tuple[int, str, str, int], list[float]] = {}
    for row in rows:
        if row.reward is not None:
            rewards.setdefault((row.task, row.key, row.kind, row.script), []).append(row.reward)
    return [
        f"task {task} ({key[:60]}): {kind} earned {', '.join(f'{reward:g}' for reward in earned)}"
        for (task, key, kind, _), earned in rewards.items()
        if len(set(earned)) > 1
    ]


def _plays(
    environment: Environment, config: ValidateConfig
) -> Iterator[tuple[int, Task, tuple[str, float, Script], int, int]]:
    episodes = min(config.episodes, environment.num_tasks or config.episodes)
    for index in track(range(episodes), "checking", episodes):
        task = environment.task(index)
        for number, script in enumerate(scripts(environment, task)):
            for repeat in range(config.repeats):
                yield index, task, script, number, repeat


def _count(rows: Sequence[Play]) -> dict[str, Tally]:
    tallies: dict[str, Tally] = {}
    for row in rows:
        tally = tallies.setdefault(row.kind, Tally(row.wanted))
        tally.slowest = max(tally.slowest, row.seconds)
        tally.played += 1
        if row.reward == row.wanted:
            tally.right += 1
        elif row.reward is None:
            tally.example = tally.example or f"task {row.task} ({row.key[:60]}) failed: {row.reason}"
        elif not tally.example:
            tally.example = f"task {row.task} ({row.key[:60]}): {row.said!r} earned {row.reward:g}: {row.reason}"
    return tallies


def scripts(environment: Environment, task: Task) -> Iterator[tuple[str, float, Script]]:
    """Yields the scripts of a task: kind, required reward, replies."""
    yield "oracle", 1.0, environment.oracle(task)
    yield "silence", 0.0, SILENCE
    yield "question", 0.0, [Reply(task.prompt)]
    for cheat in environment.cheats(task):
        yield "cheat", 0.0, cheat


def _show(name: str, tallies: dict[str, Tally], notice: str) -> None:
    table = Table("replies", "must earn", "played", "right", "slowest", title=name)
    for kind, tally in tallies.items():
        row = (f"{tally.wanted:g}", str(tally.played), str(tally.right), f"{tally.slowest:.2f} s")
        table.add_row(kind, *row)
    console = Console(markup=False, highlight=False)
    if notice:
        console.print(notice)
    console.print(table)
