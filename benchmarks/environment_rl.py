"""The gain of reinforcement learning in environments: a small model makes decks of slides, or works in a terminal.

    python benchmarks/environment_rl.py [--out FOLDER] [--environments slides terminal] [--ways rl rejection]
        [--seeds 3] [--first-seed 0] [--minutes 90] [--level 2] [--quick] [--table] [--json FILE]

Each environment's model is the demo's, fine-tuned on demonstrations of which a share is flawed (`--right`), as data of
the world are: pages that are not 16:9; known cheats of the terminal's families. Each way of learning starts from it:

- `rl`: `arcforge-rl` with the environment's reward alone.
- `rejection`: the model's own replies to tasks of training that earn 1 (`arcforge-sample`), fine-tuned on.

Then each model tries the same held-out tasks once, at temperature 1. The table has the rewards and, for slides, the
share of pages that are strictly 16:9; `--level 2` measures held-out decks in Chromium. Intervals are of 95%: one of
gains task by task, for which seeds and tasks are drawn again, and one of the seeds' mean gains by Student's t.

Every stage has a folder of its own in FOLDER. Finished ones are not run again, an unfinished one begins again, and none
is begun that would not end within `--minutes`, by the longest so far: the same command continues. `--table` runs
nothing. `--quick` runs every kind of command once, too briefly to learn anything.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from _environment_rows import ROWS, WAYS, Recipe, Row, evaluation, learning, sampling, tuning, write_demonstrations
from _stages import Run, once, options_of, run_all

QUICK = {
    "environments": ["slides"], "seeds": 1, "demonstrations": 40, "sft": 2, "rl": 1, "groups": 2, "group_size": 4,
    "tasks": 4, "samples": 4, "tries": 2, "again": 1,
}  # fmt: skip
"""Options of ``--quick``."""
RECIPE = {
    "demonstrations": 1600, "right": 0.6, "sft": 1200, "sft-lr": 4e-3, "rl": 40, "groups": 4, "group-size": 16,
    "lr": 2e-4, "tasks": 100, "samples": 32, "tries": 8, "again": 40, "level": 1,
}  # fmt: skip
"""Options of the recipe, and their defaults."""
T_OF_DEGREES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""97.5% quantiles of Student's t."""
DRAWS = 10_000


@dataclass(frozen=True)
class Place:
    """The folders of an environment.

    Attributes:
        out: of the benchmark.
        name: see `ROWS`.
    """

    out: Path
    name: str

    def of(self, stage: str) -> Path:
        """Returns the folder of a stage."""
        return self.out / f"{self.name}-{stage}"

    def tried(self, stage: str) -> bool:
        """Returns whether a stage's model has tried the held-out tasks."""
        return (self.of(f"{stage}-on") / "done.json").exists()

    def figures(self, stage: str, figure: str) -> list[float]:
        """Returns a figure of a stage's model for each held-out task, in their order; nan where a rollout failed."""
        (path,) = self.of(f"{stage}-on").glob("run/**/rollouts.jsonl")
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows.sort(key=lambda row: int(row["rollout"].rsplit("#", 1)[1]))
        return [float("nan") if row["failure"] else float(row["rewards"][figure]) for row in rows]


def tuned(recipe: Recipe, place: Place) -> Path:
    """Fine-tunes on demonstrations unless that is done, measures the model, and returns it."""
    row, data, folder = ROWS[place.name], place.of("data"), place.of("tuned")
    if not (data / "done.json").exists():
        start = time.monotonic()
        write_demonstrations(row, recipe.demonstrations, recipe.right, data / "kept")
        (data / "done.json").write_text(json.dumps({"wall": time.monotonic() - start}))
    once(folder, tuning(recipe.sft, recipe.sft_lr, recipe.init, data / "kept", row, 0, folder / "run"))
    measure(recipe, place, "tuned")
    return folder / "run"


def measure(recipe: Recipe, place: Place, stage: str) -> None:
    """Tries held-out tasks with a stage's model."""
    folder = place.of(f"{stage}-on")
    once(folder, evaluation(recipe, ROWS[place.name], place.of(stage) / "run", folder / "run"))


def learn(recipe: Recipe, place: Place, way: str, seed: int) -> None:
    """Lets a model learn in one way with a seed, and measures it."""
    row, start, stage = ROWS[place.name], tuned(recipe, place), f"{way}-{seed}"
    folder = place.of(stage)
    if way == "rl":
        once(folder, learning(recipe, row, start, seed, folder / "run"))
    else:
        own = place.of(f"sampled-{seed}")
        once(own, sampling(recipe, row, start, seed, own / "run"))
        (kept,) = own.glob("run/**/kept")
        once(folder, tuning(recipe.again, recipe.sft_lr / 4, str(start), kept, row, seed, folder / "run"))
    measure(recipe, place, stage)


def gains(before: Sequence[float], after: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Returns the mean gain of some seeds with its intervals; tasks of which a rollout failed are left out.

    Args:
        before: a figure of each task, or nan.
        after: the same for each seed.
    """
    values = np.array(after) - np.array(before)
    whole = ~np.isnan(values).any(axis=0)
    values, starts, ends = values[:, whole], np.array(before)[whole], np.array(after)[:, whole]
    by_seed = values.mean(axis=1)
    draw = np.random.default_rng(0)
    seeds, tasks = values.shape
    means = [np.mean(values[draw.integers(seeds, size=seeds)][:, draw.integers(tasks, size=tasks)])
             for _ in range(DRAWS)]  # fmt: skip
    found: dict[str, Any] = {
        "before": float(starts.mean()), "after": ends.mean(axis=1).tolist(), "tasks": tasks,
        "gain": float(by_seed.mean()), "interval": [float(end) for end in np.percentile(means, (2.5, 97.5))],
    }  # fmt: skip
    if seeds > 1:
        half = T_OF_DEGREES[min(seeds - 1, 9)] * statistics.stdev(by_seed.tolist()) / seeds**0.5
        found["interval_of_seeds"] = [found["gain"] - half, found["gain"] + half]
    return found


def curve_of(folder: Path, figure: str) -> list[float]:
    """Returns a figure of the rollouts of training by step: their mean."""
    steps: dict[int, list[float]] = {}
    for line in (folder / "rollouts.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if not row["failure"]:
            steps.setdefault(int(row["step"]), []).append(float(row["rewards"][figure]))
    return [statistics.fmean(steps[step]) for step in sorted(steps)]


def report(out: Path, names: Sequence[str], ways: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Prints the table of the finished runs and returns their figures."""
    print("| environment | figure | way | before | after, by seed | gain in points | 95%: seeds and tasks | 95%: seeds "
          "| processor s |\n| " + " | ".join(["---"] * 9) + " |")  # fmt: skip
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name in names:
        place = Place(out, name)
        for way in ways:
            stages = [f"{way}-{seed}" for seed in seeds if place.tried(f"{way}-{seed}")]
            for figure in ROWS[name].figures if stages and place.tried("tuned") else ():
                before, after = place.figures("tuned", figure), [place.figures(one, figure) for one in stages]
                told = gains(before, after) | {"processor": processor(place, stages)}
                if way == "rl":
                    told["curves"] = [curve_of(place.of(one) / "run", figure) for one in stages]
                found.setdefault(name, {}).setdefault(way, {})[figure] = told
                print(line_of(ROWS[name], figure, WAYS[way], told))
    return {"figures": found}


def processor(place: Place, stages: Sequence[str]) -> float:
    """Returns the mean processor seconds that a way took, without measuring and without the fine-tuning before."""
    own = [place.of(one.replace("rejection", "sampled")) for one in stages if one.startswith("rejection")]
    notes = [json.loads((one / "done.json").read_text()) for one in (*own, *map(place.of, stages))]
    return float(sum(note["processor"] for note in notes)) / len(stages)


def line_of(row: Row, figure: str, way: str, told: dict[str, Any]) -> str:
    """Returns a row of the table."""

    def ends(name: str) -> str:
        return "{:+.1f} to {:+.1f}".format(*(100 * end for end in told[name])) if name in told else ""

    cells = [
        row.title, figure, way, f"{told['before']:.1%}", ", ".join(f"{one:.1%}" for one in told["after"]),
        f"{100 * told['gain']:+.1f}", ends("interval"), ends("interval_of_seeds"), f"{told['processor']:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def parser() -> argparse.ArgumentParser:
    """Returns the options."""
    made = options_of("environment_rl", __doc__, RECIPE)
    made.add_argument("--environments", nargs="*", default=list(ROWS), choices=list(ROWS))
    made.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    return made


def runs_of(options: argparse.Namespace, recipe: Recipe, seeds: Sequence[int]) -> list[Run]:
    """Returns all runs of the options."""
    places = [Place(options.out, name) for name in options.environments]
    return [
        (partial(place.tried, f"{way}-{seed}"), partial(learn, recipe, place, way, seed))
        for way in options.ways for seed in seeds for place in places
    ]  # fmt: skip


def main() -> None:
    """Runs the missing ones, and prints."""
    run_all(
        "environment_rl", parser(), QUICK, Recipe, runs_of,
        lambda options, seeds: report(options.out, options.environments, options.ways, seeds),
    )  # fmt: skip


if __name__ == "__main__":
    main()
