"""A skill that a later stage costs, and five ways to bring it back: how much returns, and how much of the gain stays.

    python benchmarks/forgetting.py [--out FOLDER] [--kinds chat tools general] [--rows ROW ...] [--seeds 3]
        [--minutes 90] [--quick] [--table] [--json FILE]

The demo's model, fine-tuned on expressions in two ways, is trained by IcePop to solve them; then a stage teaches a new
skill, which costs expressions. Each row starts from that stage's model:

- `distill`: `algorithm=opd`, the first stage teaching expressions and the new stage its own prompts.
- `replay`: fine-tuning on right answers of the first stage and the new stage's data.
- `rl_kl`: IcePop on expressions, with a KL to the new stage's model.
- `rl_both`: IcePop on both.
- `average`: the mean of both stages' weights, without training.

The steps of the rows are chosen to take about as long; the table has the processor seconds of each. Recovered is the
share of the old skill's loss that came back, kept the share of the new skill's gain that stayed, both of pass@1 on
held-out tasks at temperature 1.

Every stage and every (kind, row, seed) has a folder of its own in FOLDER. Finished ones are not run again, an
unfinished one begins again, and none is begun that would not end within `--minutes`, by the longest so far: the same
command continues. `--table` runs nothing. `--quick` runs every kind of command once, too briefly to learn anything.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _forgetting_rows as of
from _forgetting_rows import KINDS, OLD, ROWS, Kind, Steps
from _stages import begun, frozen, once, options_of, publish, run_missing

QUICK = {
    "kinds": ["general"], "seeds": 1, "reasoning": 1, "sft": 2, "rl": 1, "distill": 1, "replay": 2, "rl_kl": 1,
    "rl_both": 1, "groups": 2, "group_size": 4, "demonstrations": 60, "samples": 40, "tasks": 8,
}  # fmt: skip
"""Options of ``--quick``."""
RECIPE = {
    "reasoning": 80, "sft": 240, "rl": 40, "distill": 100, "replay": 800, "rl-kl": 115, "rl-both": 115, "groups": 16,
    "group-size": 8, "demonstrations": 2000, "samples": 1000, "tasks": 200, "lr": 2e-4, "sft-lr": 2e-3,
    "replay-lr": 2e-3, "distill-lr": 1e-3, "kl": 0.05, "top-k": 0,
}  # fmt: skip
"""Options of the recipe, and their defaults."""


@dataclass(frozen=True)
class Recipe(Steps):
    """Options that all runs of a folder share, with the checkpoint that all begin with."""

    init: str


@dataclass(frozen=True)
class Place:
    """The folders of a kind and a seed.

    Attributes:
        out: of the benchmark.
        kind, seed: see `KINDS`.
    """

    out: Path
    kind: str
    seed: int

    def of(self, name: str) -> Path:
        """Returns the folder of a stage or row."""
        return self.out / (f"{OLD}-{self.seed}" if name == OLD else f"{self.kind}-{name}-{self.seed}")

    def has(self, name: str) -> bool:
        """Returns whether a stage or row was measured."""
        return (self.of(f"{name}-on") / "done.json").exists()

    def figures(self, name: str) -> dict[str, float] | None:
        """Returns the measured skills of a stage or row; None before that."""
        return rates(self.of(f"{name}-on")) if self.has(name) else None


def rates(place: Path) -> dict[str, float]:
    """Returns the mean rewards of an evaluation: of the old skill, and of the new one."""
    found: dict[str, list[float]] = {OLD: [], "new": []}
    (path,) = place.glob("run/**/rollouts.jsonl")
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if not row["failure"]:
            found[OLD if row["domain"] == "math" else "new"].append(row["rewards"]["reward"])
    return {skill: statistics.fmean(values) for skill, values in found.items()}


def measure(recipe: Recipe, place: Place, name: str, checkpoint: Path | str) -> None:
    """Tries held-out tasks with the model of a stage or row."""
    folder = place.of(f"{name}-on")
    once(folder, of.evaluation(KINDS[place.kind], checkpoint, recipe.tasks, folder / "run"))


def prepare(recipe: Recipe, place: Place) -> tuple[Path, Path]:
    """Runs the stages before the rows, measures them, and returns the old stage's model and the new one's."""
    kind, seed = KINDS[place.kind], place.seed
    old, data, new = place.of(OLD), place.of("data"), place.of("new")
    once(old, [*of.learning(recipe, recipe.reasoning, recipe.init, 80, seed, old / "run"), *of.ON_OLD])
    once(data, of.demonstrations(recipe, kind, data / "run"))
    tuned = place.of("tuned") if kind.rl else new
    once(tuned, of.tuning(recipe.sft, recipe.sft_lr, old / "run", kept(data), seed, tuned / "run"))
    if kind.rl:
        once(new, on_new(recipe, kind, tuned / "run", seed, new / "run"))
    measure(recipe, place, OLD, old / "run")
    measure(recipe, place, "new", new / "run")
    return old / "run", new / "run"


def on_new(recipe: Recipe, kind: Kind, init: Path, seed: int, folder: Path) -> list[str]:
    """Returns the command of reinforcement learning on the new skill."""
    shared = of.learning(recipe, recipe.rl, str(init), kind.tokens, seed, folder)
    return [*shared, "environment=mixture", *of.mixture(kind, "environment", old=False)]


def kept(place: Path) -> list[Path]:
    """Returns the folders of records below a command's folder."""
    return sorted(place.glob("run/**/kept"))


def distill(recipe: Recipe, place: Place, old: Path, new: Path, folder: Path) -> None:
    """Runs the row."""
    once(folder, of.distillation(recipe, KINDS[place.kind], old, new, place.seed, folder / "run"))


def replay(recipe: Recipe, place: Place, old: Path, new: Path, folder: Path) -> None:
    """Runs the row."""
    sampled = place.of("sampled")
    once(sampled, of.sampling(recipe, old, sampled / "run"))
    folders = [*kept(sampled), *kept(place.of("data"))]
    once(folder, of.tuning(recipe.replay, recipe.replay_lr, new, folders, place.seed, folder / "run"))


def rl_kl(recipe: Recipe, place: Place, old: Path, new: Path, folder: Path) -> None:
    """Runs the row."""
    shared = of.learning(recipe, recipe.rl_kl, str(new), 80, place.seed, folder / "run")
    once(folder, [*shared, *of.ON_OLD, f"algorithm.kl={recipe.kl}"])


def rl_both(recipe: Recipe, place: Place, old: Path, new: Path, folder: Path) -> None:
    """Runs the row."""
    kind = KINDS[place.kind]
    shared = of.learning(recipe, recipe.rl_both, str(new), max(80, kind.tokens), place.seed, folder / "run")
    once(folder, [*shared, "environment=mixture", *of.mixture(kind, "environment")])


def average(recipe: Recipe, place: Place, old: Path, new: Path, folder: Path) -> None:
    """Runs the row: writes the mean of two models, which takes no time that counts."""
    import torch

    from arcforge_core.checkpoint.pretrained import load_with_tokenizer, save_pretrained
    from arcforge_core.ops.hardware import build_hardware
    from arcforge_core.plugins.loader import registry

    if (folder / "done.json").exists():
        return
    hardware: Any = registry().get("hardware", "cpu").load_schema()()
    (first, tokenizer), (second, _) = (load_with_tokenizer(str(one), build_hardware(hardware)) for one in (old, new))
    others = second.state_dict()
    with torch.no_grad():
        for name, weight in first.state_dict().items():
            if weight.is_floating_point():
                weight.copy_((weight.float() + others[name].float()) / 2)
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained(first, folder / "run", tokenizer)
    (folder / "done.json").write_text(json.dumps({"wall": 0.0, "processor": 0.0}))


RUNS: dict[str, Callable[[Recipe, Place, Path, Path, Path], None]] = {
    "distill": distill, "replay": replay, "rl_kl": rl_kl, "rl_both": rl_both, "average": average,
}  # fmt: skip


def learn(recipe: Recipe, place: Place, row: str) -> None:
    """Runs a row with a seed, and before it the stages that it needs; measures both skills."""
    old, new = prepare(recipe, place)
    folder = place.of(row)
    RUNS[row](recipe, place, old, new, folder)
    measure(recipe, place, row, folder / "run")


def line_of(places: Sequence[Place], row: str) -> list[dict[str, float]]:
    """Returns a row's figures by seed, of those that have it: pass@1 of both skills, recovered and kept shares."""
    seeds: list[dict[str, float]] = []
    for place in places:
        old, new, end = (place.figures(name) for name in (OLD, "new", row))
        if old is None or new is None or end is None:
            continue
        lost, gained = old[OLD] - new[OLD], new["new"] - old["new"]
        seeds.append({
            "seed": place.seed, "old_best": old[OLD], "old_after": new[OLD], "old_end": end[OLD],
            "new_before": old["new"], "new_best": new["new"], "new_end": end["new"],
            "recovered": (end[OLD] - new[OLD]) / lost if lost > 0 else float("nan"),
            "kept": (end["new"] - old["new"]) / gained if gained > 0 else float("nan"),
            "processor": json.loads((place.of(row) / "done.json").read_text())["processor"],
        })  # fmt: skip
    return seeds


def report(out: Path, kinds: Sequence[str], rows: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Prints the table of the finished rows and returns their figures."""
    print("| stage | brought back by | old: best, after the stage, end | new: before, best, end | recovered, by seed "
          "| kept, by seed | processor s |\n| " + " | ".join(["---"] * 7) + " |")  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        places = [Place(out, kind, seed) for seed in seeds]
        found[kind] = {}
        for row in rows:
            if seeds_of_row := line_of(places, row):
                found[kind][row] = seeds_of_row
                print(text_of(KINDS[kind].title, ROWS[row], seeds_of_row))
    return {"rows": found}


def text_of(kind: str, row: str, seeds: Sequence[dict[str, float]]) -> str:
    """Returns a line of the table: means over seeds of the skills, shares of each seed."""

    def means(*names: str) -> str:
        return ", ".join(f"{statistics.fmean(one[name] for one in seeds):.1%}" for name in names)

    def each(name: str) -> str:
        return ", ".join(f"{one[name]:.0%}" for one in seeds)

    cells = [
        kind, row, means("old_best", "old_after", "old_end"), means("new_before", "new_best", "new_end"),
        each("recovered"), each("kept"), f"{statistics.fmean(one['processor'] for one in seeds):.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def parser() -> argparse.ArgumentParser:
    """Returns the options."""
    made = options_of("forgetting", __doc__, RECIPE)
    made.add_argument("--kinds", nargs="*", default=["chat"], choices=list(KINDS))
    made.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    return made


def main() -> None:
    """Runs the missing ones, and prints."""
    options = begun(parser(), QUICK)
    recipe = frozen(Recipe, options.out, options)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    places = [Place(options.out, kind, seed) for kind in options.kinds for seed in seeds]
    runs = [(partial(place.has, row), partial(learn, recipe, place, row)) for place in places for row in options.rows]
    run_missing(options, partial(options.out.glob, "*/done.json"), runs)
    publish("forgetting", recipe, report(options.out, options.kinds, options.rows, seeds), options.json)


if __name__ == "__main__":
    main()
