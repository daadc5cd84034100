"""The schedules of finished runs under the simulator's virtual clock, fed with what those runs measured.

A run gives: the tokens of each turn of each rollout and the latencies of its calls, by the rollout's name; the engine's
seconds for a decoding step and for a sequence in it, by least squares over the run's steps; the mean time in which the
trainer does not wait; the share of groups whose rewards were equal. The scheduler's rules are the run's own. So the
simulator has to find out what follows from the order of events: waiting, overlap, staleness.
"""

from __future__ import annotations

import csv
import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _async_rows import ETA
from _slow_tools import SlowErrandsConfig, latency
from arcforge_rl.orchestrator.rules import Rules
from arcforge_rl.orchestrator.scheduler import Start
from arcforge_rl.orchestrator.simulation import Machine, Simulation, Workload

Turns = tuple[list[int], list[int]]
"""Tokens of each turn of a rollout, and the number of calls between two turns."""
SCHEDULES = ("barrier", "oversampled", "one_step_off", "async")
"""Rows that are compared; further ones have the schedule of ``async``."""


@dataclass(frozen=True)
class Measured:
    """Facts of a run for the simulator.

    Attributes:
        step_seconds: from batch to batch, without the first tenth of the steps.
        train_seconds: mean time of a step in which the trainer does not wait.
        push_seconds: of a weight push.
        decode_seconds, sequence_seconds: of a decoding step: a constant, and a part for each sequence.
        equal: share of groups left out because their rewards were equal.
        turns: of the rollouts that ended, by name.
        steps: of the run.
    """

    step_seconds: float
    train_seconds: float
    push_seconds: float
    decode_seconds: float
    sequence_seconds: float
    equal: float
    turns: dict[str, Turns]
    steps: int


def measured(folder: Path, engines: int) -> Measured:
    """Reads the folder of a run with that many engines."""
    with (folder / "metrics.csv").open() as file:
        rows = [{name: float(cell or 0.0) for name, cell in row.items()} for row in csv.DictReader(file)]
    skipped = max(1, len(rows) // 10)
    spans = [row["seconds"] - before["seconds"] for before, row in itertools.pairwise(rows)]
    later = list(zip(spans, rows[1:], strict=True))
    decode, sequence = engine_cost(
        [
            (
                span * (1 - row["engine_idle"]),
                row["engine_tokens"] / engines / max(row["engine_batch"], 1e-9),
                row["engine_tokens"] / engines,
            )
            for span, row in later
        ]
    )
    played: dict[str, Turns] = {}
    groups: dict[str, list[float]] = {}
    for line in (folder / "rollouts.jsonl").read_text().splitlines():
        rollout = json.loads(line)
        if not rollout.get("failure"):
            played[rollout["rollout"]] = turns_of(rollout)
            groups.setdefault(rollout["group"], []).append(rollout["rewards"]["reward"])
    equal = statistics.fmean(len(set(rewards)) == 1 for rewards in groups.values())
    return Measured(
        step_seconds=statistics.fmean(spans[skipped - 1 :]),
        train_seconds=statistics.fmean(span * (1 - row["trainer_idle"]) for span, row in later[skipped - 1 :]),
        push_seconds=statistics.fmean(row["seconds_handover"] for row in rows),
        decode_seconds=decode, sequence_seconds=sequence, equal=equal, turns=played, steps=len(rows),
    )  # fmt: skip


def engine_cost(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Returns a and b of seconds = a x decoding steps + b x tokens, both at least 0, by least squares.

    Args:
        rows: busy seconds, decoding steps and tokens of each training step.
    """
    ss, st, tt = (sum(x * y for x, y in pairs) for pairs in (
        [(s, s) for _, s, _ in rows], [(s, t) for _, s, t in rows], [(t, t) for _, _, t in rows],
    ))  # fmt: skip
    ys, yt = sum(y * s for y, s, _ in rows), sum(y * t for y, _, t in rows)
    determinant = ss * tt - st * st
    a, b = (ys * tt - yt * st) / determinant, (yt * ss - ys * st) / determinant
    if a < 0:
        return 0.0, yt / tt
    return (ys / ss, 0.0) if b < 0 else (a, b)


def turns_of(rollout: dict[str, Any]) -> Turns:
    """Returns the tokens of each turn, those of the rollout shared by what the turns say, and the calls after it."""
    said: list[int] = []
    calls: list[int] = []
    for message in rollout["messages"]:
        if message["role"] == "assistant":
            functions = sum(len(str(call["function"])) for call in message.get("tool_calls") or [])
            said.append(20 + len(message["content"]) + functions)
            calls.append(0)
        elif message["role"] == "tool":
            calls[-1] += 1
    return [max(1, round(rollout["length"] * one / sum(said))) for one in said] or [1], calls[:-1]


def plan_of(
    turns: dict[str, Turns], seed: int, scale: float, size: int
) -> Callable[[Start], tuple[Sequence[int], Sequence[float]]]:
    """Returns the plan of a run's rollouts. One that was aborted has the turns of another, and its own latencies."""
    config, known = SlowErrandsConfig(scale=scale), list(turns.values())

    def plan(start: Start) -> tuple[Sequence[int], Sequence[float]]:
        number = start.key.number * size + start.number
        name = f"{seed}/{start.key.step}/0/{number}"
        tokens, calls = turns.get(name) or known[hash((seed, start.key.step, number)) % len(known)]
        numbers = itertools.count()
        return tokens, [sum(latency(config, name, next(numbers)) for _ in range(count)) for count in calls]

    return plan


def rules_of(recipe: Any, row: str, batch: int) -> Rules:
    """Returns the rules of a row's scheduler."""
    groups = recipe.groups * batch
    whole = Rules(groups, recipe.group_size, eta=0.0, max_staleness=0, concurrency=256, refills=0)
    stale = Rules(groups, recipe.group_size, eta=float(ETA), max_staleness=8, concurrency=256, refills=0)
    found = {
        "barrier": whole,
        "oversampled": Rules(whole.threshold, whole.group_size, 0.0, 0, concurrency=256, oversample=1.5, refills=0),
        "one_step_off": Rules(
            whole.threshold, whole.group_size, 1.0, 8, concurrency=256, whole_batches=True, refills=0
        ),
    }
    return found.get(row, stale)


def compare(recipe: Any, rows: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Simulates each finished run of the four schedules, and prints both."""
    found = []
    print("\n| row | seed | measured s/step | simulated s/step | difference | trainer idle: measured, simulated "
          "| staleness: measured, simulated |")  # fmt: skip
    print("| " + " | ".join(["---"] * 7) + " |")
    for name in SCHEDULES:
        for run in runs.get(name, []):
            variant = next(one for one in rows[name].variants if one.name == run["variant"])
            real = measured(Path(run["place"]) / "run", variant.processes)
            machine = Machine(
                engines=variant.processes, step_seconds=real.decode_seconds, sequence_seconds=real.sequence_seconds,
                train_seconds=real.train_seconds, push_seconds=0.0, shares=not rows[name].apart,
            )  # fmt: skip
            plan = plan_of(real.turns, run["seed"], recipe.scale, recipe.group_size)
            work = Workload(equal=real.equal, plan=plan)
            one = Simulation(rules_of(recipe, name, variant.batch), work, machine, run["seed"]).run(real.steps)
            off = one.step_seconds / real.step_seconds - 1
            print(
                f"| {rows[name].title} | {run['seed']} | {real.step_seconds:.2f} | {one.step_seconds:.2f} | {off:+.0%} "
                f"| {run['trainer_idle']:.0%}, {1 - one.trainer_busy:.0%} "
                f"| {run['staleness']:.2f}, {one.staleness:.2f} |"
            )
            found.append(
                {"row": name, "seed": run["seed"], "measured": real.step_seconds, "simulated": one.step_seconds}
            )
    return found
