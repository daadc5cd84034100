"""Held-out rewards of the checkpoints of finished runs, for ``benchmarks/async_rl.py``: no part of the timed runs."""

from __future__ import annotations

import csv
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from _slow_tools import Errands, ErrandsConfig
from arcforge_core.checkpoint.pretrained import load_with_tokenizer
from arcforge_core.episodes.agent import SamplingSetup, build_dialogue
from arcforge_core.generation.engine import build_engine
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.plugins.loader import registry
from arcforge_rl.rollouts.clock import Clock
from arcforge_rl.rollouts.collect import StepTasks, roll_out_groups

AT_ONCE = 128
"""Tasks that are tried together, as in the evaluations of a run."""


class Judge:
    """Tries the same held-out tasks, with the same seeds, by each checkpoint.

    Args:
        init: checkpoint with the shape and the tokenizer of all others.
        tasks: number of held-out tasks, each tried once at temperature 1.
        longest: tokens of a reply at most.
        options: fields of ``environment=errands``.
    """

    def __init__(self, init: str, tasks: int, longest: int, options: dict[str, Any]) -> None:
        self.environment = Errands(ErrandsConfig(split="heldout", **options))
        hardware: Any = registry().get("hardware", "cpu").load_schema()()
        model, tokenizer = load_with_tokenizer(init, build_hardware(hardware))
        model = model.float()
        engine: Any = registry().get("engine", "paged").load_schema()(max_running=AT_ONCE)
        self.engine: Any = build_engine(engine, model.requires_grad_(False))
        positions = model.config.max_position_embeddings
        self.setup = SamplingSetup(build_dialogue(tokenizer, "off"), longest, 1.0, positions)
        self.tasks = tasks

    def reward(self, checkpoint: Path | None) -> float:
        """Returns the mean reward of a checkpoint; None is the initial one, before any other is asked for."""
        if checkpoint is not None:
            self.engine.update_weights_from(checkpoint)
        groups = [
            group
            for start in range(0, self.tasks, AT_ONCE)
            for group in roll_out_groups(self._chunk(start), self.engine, self.setup, Clock())
        ]  # fmt: skip
        return statistics.fmean(rollout.outcome.reward for group in groups for rollout in group)

    def _chunk(self, start: int) -> StepTasks:
        tasks = range(start, min(start + AT_ONCE, self.tasks))
        return StepTasks(self.environment, f"heldout/{start}", tasks, 1)

    def close(self) -> None:
        """Ends the engine."""
        self.engine.close()


def curve_of(folder: Path, judge: Judge, start: float) -> list[tuple[int, float, float]]:
    """Returns step, seconds of training and held-out reward of each checkpoint of a run, measured once.

    Args:
        folder: of the run.
        judge: tries the tasks.
        start: reward of the initial checkpoint.
    """
    note = folder.parent / f"heldout-{judge.tasks}.json"
    known: dict[str, float] = json.loads(note.read_text()) if note.exists() else {}
    with (folder / "metrics.csv").open() as file:
        seconds = {int(row["step"]): float(row["seconds"]) for row in csv.DictReader(file)}
    found = [(0, 0.0, start)]
    for checkpoint in sorted((folder / "checkpoints").glob("step-*")):
        step = int(checkpoint.name.removeprefix("step-"))
        if checkpoint.name not in known:
            known[checkpoint.name] = judge.reward(checkpoint)
            note.write_text(json.dumps(known))
        found.append((step, seconds[step], known[checkpoint.name]))
    return found


def seconds_to(curve: list[tuple[int, float, float]], reward: float) -> float | None:
    """Returns the seconds until the held-out reward was reached, between two checkpoints by a straight line."""
    for (_, before, low), (_, after, high) in itertools.pairwise(curve):
        if high >= reward:
            return before + (after - before) * max(0.0, reward - low) / (high - low) if high > low else before
    return None
