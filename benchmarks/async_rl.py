"""Rollouts and training at the same time, against synchronous loops: seconds to the same held-out reward.

    python benchmarks/async_rl.py [--out FOLDER] [--rows ROW ...] [--seeds 3] [--first-seed 0] [--steps 24] [--scale 1]
        [--minutes 90] [--sweep] [--sweep-steps 6] [--only-run] [--simulate] [--table] [--json FILE]

A model of 4 million parameters answers questions with a calculator, three in a conversation. Every call of the tool
takes a time that is log-normal (median 1 s, sigma 1.0, at most 30 s) and depends on seed, task, sample and number of
the call alone; `--scale` divides all of them. Rows are schedules with their objectives, see ``_async_rows.py``:
synchronous ones use all cores for sampling and for training, the others half of them for each.

Each (row, seed) is a run with a folder of its own, FOLDER/ROW-SEED. Finished ones are not run again, an unfinished
run begins again, and none is begun that would not end within `--minutes`, by the runs of its row so far: the same
command continues. Rows whose seconds are compared come first, with all seeds; then those measured for their idle shares
(the first seed, `--brief-steps`); then the other objectives. `--sweep` first runs the variants of a row with seed 1000
for `--sweep-steps`, and those within 10% of the fastest, if there are several, for twice as many; without it the first
variant is taken. Tool calls of the same rollout take the same time in all variants, so that few steps tell them apart.
PPO has the variant that is the fastest for the barrier.

Held-out rewards are measured afterwards, from the checkpoints, which needs no quiet machine: `--only-run` leaves it to
`--table`, which runs nothing. Seconds are counted to `--target`, by default the highest reward that each run of the
compared rows has reached. `--simulate` feeds the schedules' simulator with latencies, rates and shares of each finished
run, and prints its seconds of a step beside the measured ones.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from _async_rows import COMMON, Row, Variant, rows_of
from _machine import describe_machine

COMMAND = str(Path(__file__).parent / "_slow_command.py")
SWEEP_SEED = 1000
CLEAR = 1.1
"""Ratio of a variant's seconds to the fastest one's above which it has lost."""
LEAST = 4
"""Steps of a sweep's runs at least: a variant with half of them still has a step after the first."""
Plan = list[tuple[int, str]]
"""Seeds and rows in the order of their runs."""
REWARD_MODEL = "reward_model"
"""Folder of the reward model, among those of the runs."""


@dataclass(frozen=True)
class Recipe:
    """Options that all runs of a folder share; frozen in FOLDER/recipe.json.

    Attributes:
        init: checkpoint that all runs start from.
        steps, brief_steps: of a run, and of one in a brief row.
        groups, group_size: of a step.
        lr: learning rate.
        below, questions: of the tasks.
        scale: divides the latencies of the tool.
        checkpoint_every: steps.
        tasks: held-out ones.
        target: the held-out reward to which seconds are counted; None: see the module.
        cores: that the runs may use.
    """

    init: str
    steps: int
    brief_steps: int
    groups: int
    group_size: int
    lr: float
    below: int
    questions: int
    scale: float
    checkpoint_every: int
    tasks: int
    target: float | None
    cores: int

    @classmethod
    def load(cls, out: Path, options: argparse.Namespace) -> Recipe:
        """Returns the recipe of a folder: as it was begun, or of the options.

        Raises:
            SystemExit: the folder was begun with another recipe.
        """
        names = [name for name in cls.__dataclass_fields__ if name != "cores"]
        wanted = cls(**{name: getattr(options, name) for name in names}, cores=len(os.sched_getaffinity(0)))
        note = out / "recipe.json"
        if not note.exists():
            note.write_text(json.dumps(asdict(wanted), indent=2))
        found = cls(**json.loads(note.read_text()))
        changed = [name for name in (*names, "cores") if getattr(found, name) != getattr(wanted, name)]
        if changed and not options.table:
            was = ", ".join(f"{name} {getattr(found, name)} (now {getattr(wanted, name)})" for name in changed)
            raise SystemExit(f"{note} was begun with another recipe: {was}. Name another --out, or the same options")
        return found


def command_of(recipe: Recipe, row: Row, variant: Variant, seed: int, folder: Path) -> list[str]:
    """Returns the command of a run."""
    threads = recipe.cores // 2 if row.apart else recipe.cores // variant.processes
    arguments = [
        *COMMON, *row.overrides, *variant.overrides, f"init={recipe.init}", f"seed={seed}", f"folder={folder}",
        f"environment.scale={recipe.scale}",
        f"environment.below={recipe.below}",
        f"environment.questions={recipe.questions}",
        f"rollout.groups={recipe.groups * variant.batch}",
        f"rollout.group_size={recipe.group_size}", f"trainer.max_steps={recipe.steps // variant.batch}",
        f"trainer.checkpoint_every={max(1, recipe.checkpoint_every // variant.batch)}",
        f"optimizer.lr={recipe.lr}", f"trainer.threads={max(1, threads)}",
    ]  # fmt: skip
    if row.judged:
        arguments.append(f"reward_model.checkpoint={folder.parents[1] / REWARD_MODEL}")
    launcher: list[str] = []
    if variant.processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={variant.processes}"]
    return [sys.executable, *launcher, COMMAND, "rl", *arguments]


def make_reward_model(init: str, folder: Path) -> None:
    """Writes the initial model with a scalar head of zeros, unless it is there."""
    import torch

    from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
    from arcforge_core.checkpoint.scalar import save_scalar
    from arcforge_core.model.scalar import ScalarModel
    from arcforge_core.tokenizer.tokenizer import Tokenizer

    if not folder.exists():
        source = find_checkpoint(init)
        save_scalar(ScalarModel(load_pretrained(source, torch.float32)), folder, Tokenizer.load(source))


def train(recipe: Recipe, row: Row, variant: Variant, seed: int, place: Path) -> dict[str, Any]:
    """Runs a row with a seed unless that is done; returns the notes about it."""
    note = place / "done.json"
    if not note.exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        command = command_of(recipe, row, variant, seed, place / "run")
        begun = time.monotonic()
        with (place / "output.txt").open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)}\n{(place / 'output.txt').read_text()[-3000:]}")
        found = {
            "row": row.name, "variant": variant.name, "seed": seed, "wall": time.monotonic() - begun,
            "processor": usage.ru_utime + usage.ru_stime, "load_average": os.getloadavg()[0], "command": command[1:],
        }  # fmt: skip
        note.write_text(json.dumps(found, indent=2))
    done: dict[str, Any] = json.loads(note.read_text())
    return done


def figures_of(folder: Path) -> dict[str, float]:
    """Returns means over the steps of a run; the first tenth does not count in times and shares."""
    with (folder / "metrics.csv").open() as file:
        rows = [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    skipped = max(1, len(rows) // 10)
    spans = [row["seconds"] - before["seconds"] for before, row in itertools.pairwise(rows)][skipped - 1 :]
    kept = rows[skipped:]

    def share(name: str) -> float:
        return sum(span * row.get(name, 0.0) for span, row in zip(spans, kept, strict=True)) / sum(spans)

    return {
        "steps": len(rows),
        "step_seconds": statistics.fmean(spans),
        "trainer_idle": share("trainer_idle"),
        "engine_idle": share("engine_idle"),
        "staleness": statistics.fmean(row.get("staleness_take_mean", 0.0) for row in rows if row["groups"]),
        "most_staleness": max(row.get("staleness_take_max", 0.0) for row in rows),
        "trained_share": rows[-1].get("trained_per_sampled", 0.0),
        "masked": statistics.fmean(row.get("masked_low", 0.0) + row.get("masked_high", 0.0) for row in rows),
        "rollout_p99": statistics.fmean(row.get("rollout_p99", 0.0) for row in kept),
    }


def sweep(recipe: Recipe, row: Row, out: Path, steps: int) -> dict[str, float]:
    """Returns the seconds of a step of the recipe's groups by variant, the fastest first; see the module.

    Args:
        recipe: of the runs.
        row: has the variants.
        out: folder of the runs.
        steps: of the first runs.
    """
    tried: dict[str, float] = {}
    left = list(row.variants)
    for length in (steps, 2 * steps):
        for variant in left:
            place = out / f"sweep-{row.name}.{variant.name}-{length}"
            train(replace(recipe, steps=length), row, variant, SWEEP_SEED, place)
            tried[variant.name] = figures_of(place / "run")["step_seconds"] / variant.batch
            said = f"{tried[variant.name]:.2f} s for {recipe.groups} groups, {length} steps"
            print(f"sweep {row.name} {variant.name}: {said}", flush=True)
        fastest = min(tried[variant.name] for variant in left)
        left = [variant for variant in left if tried[variant.name] <= CLEAR * fastest]
        if len(left) == 1:
            break
    names = sorted(tried, key=lambda name: (name not in {one.name for one in left}, tried[name]))
    return {name: tried[name] for name in names}


def chosen(recipe: Recipe, rows: dict[str, Row], row: Row, out: Path, sweep_steps: int) -> Variant:
    """Returns the variant of a row: the one that a sweep of this many steps found to be the fastest, else the first."""
    note, swept = out / "sweep.json", rows[row.swept_as or row.name]
    known: dict[str, dict[str, float]] = json.loads(note.read_text()) if note.exists() else {}
    if swept.name not in known and sweep_steps and len(swept.variants) > 1:
        known[swept.name] = sweep(recipe, swept, out, sweep_steps)
        note.write_text(json.dumps(known, indent=2))
    by_name = {variant.name: variant for variant in row.variants}
    return next((by_name[name] for name in known.get(swept.name, {}) if name in by_name), row.variants[0])


def plan_of(rows: dict[str, Row], seeds: range) -> Plan:
    """Returns the runs in their order; see the module."""
    ranks = sorted({row.rank for row in rows.values()})
    return [
        (seed, row.name)
        for rank in ranks
        for seed in seeds
        for row in rows.values()
        if row.rank == rank and not (row.brief and seed != seeds[0])
    ]


def seconds_of(out: Path, name: str) -> float:
    """Returns how long a run of a row takes, by its longest one so far; 0 before the first."""
    notes = [json.loads(path.read_text()) for path in out.glob(f"{name}-[0-9]*/done.json")]
    return max((float(note["wall"]) for note in notes), default=0.0)


def target_of(rows: dict[str, Row], runs: dict[str, list[dict[str, Any]]]) -> float | None:
    """Returns the highest reward that each run of the compared rows has reached; None without one."""
    curves = [run["curve"] for name, of_row in runs.items() if rows[name].rank == 0 for run in of_row]
    return min((max(reward for _, _, reward in curve) for curve in curves), default=None)


def finished(out: Path, rows: dict[str, Row]) -> dict[str, list[dict[str, Any]]]:
    """Returns the notes of the finished runs by row, in the order of seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in rows:
        places = sorted(out.glob(f"{name}-*/done.json"), key=lambda path: int(path.parent.name.rpartition("-")[2]))
        if places:
            found[name] = [json.loads(path.read_text()) | {"place": str(path.parent)} for path in places]
    return found


def report(recipe: Recipe, out: Path, rows: dict[str, Row], machine: dict[str, Any]) -> dict[str, Any]:
    """Measures held-out rewards of the finished runs, prints the table, and returns everything."""
    from _async_evaluate import Judge, curve_of, seconds_to

    options = {"below": recipe.below, "questions": recipe.questions}
    runs = finished(out, rows)
    judge = Judge(recipe.init, recipe.tasks, 64, options)
    start = judge.reward(None)
    for name, of_row in runs.items():
        for run in of_row:
            folder = Path(run["place"]) / "run"
            run["curve"] = curve_of(folder, judge, start)
            run |= figures_of(folder)
        print(f"evaluated {name}", flush=True)
    judge.close()
    target = recipe.target if recipe.target is not None else target_of(rows, runs)
    for run in (run for of_row in runs.values() for run in of_row):
        run["seconds_to_target"] = None if target is None else seconds_to(run["curve"], target)
    print(f"\nheld-out reward at the start {start:.3f}; target {target}; recipe {json.dumps(asdict(recipe))}\n")
    print("| row | variant | seeds, steps | s to target | final reward | s/step | processor s/step | trainer idle "
          "| engine idle | staleness mean, most | masked | trained per sampled | p99 s |")  # fmt: skip
    print("| " + " | ".join(["---"] * 13) + " |")
    for name, of_row in runs.items():
        print(line_of(rows[name].title, of_row))
    return {"benchmark": "async_rl", "machine": machine, "recipe": asdict(recipe), "start": start, "target": target,
            "runs": runs}  # fmt: skip


def line_of(title: str, runs: list[dict[str, Any]]) -> str:
    """Returns a row of the table: medians over seeds, final rewards each."""

    def median(name: str) -> float:
        return statistics.median(run[name] for run in runs)

    reached = [run["seconds_to_target"] for run in runs]
    to = "/".join("-" if seconds is None else f"{seconds:.0f}" for seconds in reached)
    final = "/".join(f"{run['curve'][-1][2]:.3f}" for run in runs)
    processor = statistics.median(run["processor"] / run["steps"] for run in runs)
    cells = [
        title, runs[0]["variant"], f"{len(runs)}, {median('steps'):.0f}", to, final, f"{median('step_seconds'):.2f}",
        f"{processor:.2f}", f"{median('trainer_idle'):.0%}", f"{median('engine_idle'):.0%}",
        f"{median('staleness'):.2f}, {max(run['most_staleness'] for run in runs):.0f}", f"{median('masked'):.2%}",
        f"{median('trained_share'):.0%}", f"{median('rollout_p99'):.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Runs the missing ones, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/async_rl"))
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=90.0)
    for flag in ("--sweep", "--only-run", "--simulate", "--table"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--sweep-steps", type=int, default=6)
    parser.add_argument("--json", type=Path, metavar="FILE")
    recipe = parser.add_argument_group("recipe")
    recipe.add_argument("--init", default="demo")
    recipe.add_argument("--steps", type=int, default=24)
    recipe.add_argument("--brief-steps", type=int, default=12)
    recipe.add_argument("--groups", type=int, default=4)
    recipe.add_argument("--group-size", type=int, default=8)
    recipe.add_argument("--lr", type=float, default=2e-4)
    recipe.add_argument("--below", type=int, default=20_000)
    recipe.add_argument("--questions", type=int, default=3)
    recipe.add_argument("--scale", type=float, default=1.0)
    recipe.add_argument("--checkpoint-every", type=int, default=4)
    recipe.add_argument("--tasks", type=int, default=128)
    recipe.add_argument("--target", type=float)
    options = parser.parse_args()
    if options.sweep_steps < LEAST:
        raise SystemExit(f"--sweep-steps {options.sweep_steps}: must be at least {LEAST}")
    if options.steps % 2:
        raise SystemExit(f"--steps {options.steps}: must be even, some rows have steps of twice the groups")
    options.out.mkdir(parents=True, exist_ok=True)
    frozen = Recipe.load(options.out, options)
    every = rows_of(frozen.cores)
    if unknown := sorted(set(options.rows) - set(every)):
        raise SystemExit(f"--rows {' '.join(unknown)}: the rows are {' '.join(every)}")
    rows = {name: row for name, row in every.items() if not options.rows or name in options.rows}
    end, left = time.monotonic() + 60 * options.minutes, 0
    for seed, name in plan_of(rows, range(options.first_seed, options.first_seed + options.seeds)):
        row, place = rows[name], options.out / f"{name}-{seed}"
        done = (place / "done.json").exists()
        if options.table or not (done or time.monotonic() + seconds_of(options.out, name) < end):
            left += not done
            continue
        if row.judged:
            make_reward_model(frozen.init, options.out / REWARD_MODEL)
        variant = chosen(frozen, every, row, options.out, options.sweep and options.sweep_steps)
        recipe_of_row = replace(frozen, steps=frozen.brief_steps) if row.brief else frozen
        found = train(recipe_of_row, row, variant, seed, place)
        spent = f"{found['wall']:.0f} s, processor {found['processor']:.0f} s"
        print(f"{name} {seed} ({variant.name}): {spent}", flush=True)
    if left:
        print(f"{left} runs are left: the same command continues", flush=True)
    if options.only_run:
        return
    whole = report(frozen, options.out, rows, describe_machine(1))
    if options.simulate:
        from _async_simulate import compare

        whole["simulated"] = compare(frozen, rows, whole["runs"])
    if options.json:
        options.json.write_text(json.dumps(whole, indent=2))


if __name__ == "__main__":
    main()
