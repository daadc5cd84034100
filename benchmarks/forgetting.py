"""Skills that a later stage costs, and ways to bring them back: how much returns, and how much of the gain stays.

    python benchmarks/forgetting.py [--out FOLDER] [--kinds chat tools general lengths] [--rows ROW ...] [--seeds 3]
        [--minutes 90] [--quick] [--table] [--json FILE]

The demo's model, fine-tuned on expressions in two ways, is trained by IcePop to solve them; then a stage teaches a new
skill, which costs expressions. Each row starts from that stage's model:

- `distill`: `algorithm=opd`, the first stage teaching expressions and the new stage its own prompts.
- `replay`: fine-tuning on right answers of the first stage and the new stage's data.
- `rl_kl`: IcePop on expressions, with a KL to the new stage's model.
- `rl_both`: IcePop on both.
- `average`: the mean of both stages' weights, without training.

`lengths` has a stage more after the first: fine-tuning on sums, which are answered by a number, in a tenth of the
tokens that expressions take. The stage of notices costs both skills. `distill` has three teachers of equal weight; one
more row, `tokens`, gives all tokens the same weight, so that the teacher of expressions has most of it. A second table
has the lengths of the old skills' replies, at their teachers', and the teachers' tokens and shares of the weights.

The steps of the rows are chosen to take about as long; the table has the processor seconds of each. Recovered is the
share of an old skill's loss that came back, kept the share of the new skill's gain that stayed, both of pass@1 on
held-out tasks at temperature 1.

Every stage and every (kind, row, seed) has a folder of its own in FOLDER. Finished ones are not run again, an
unfinished one begins again, and none is begun that would not end within `--minutes`, by the longest so far: the same
command continues. `--table` runs nothing. `--quick` runs every kind of command once, too briefly to learn anything.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _forgetting_rows as of
from _forgetting_figures import Place, report
from _forgetting_rows import KINDS, NEW, OLD, ROWS, Steps
from _stages import Run, once, options_of, run_all

QUICK = {
    "kinds": ["general", "lengths"], "seeds": 1, "reasoning": 1, "sft": 2, "rl": 1, "distill": 1, "replay": 2,
    "rl_kl": 1, "rl_both": 1, "groups": 2, "group_size": 4, "demonstrations": 60, "samples": 40, "tasks": 8,
}  # fmt: skip
"""Options of ``--quick``."""
RECIPE = {
    "reasoning": 80, "sft": 240, "rl": 40, "distill": 100, "replay": 800, "rl-kl": 115, "rl-both": 115, "groups": 16,
    "group-size": 8, "demonstrations": 2000, "samples": 1000, "tasks": 200, "lr": 2e-4, "sft-lr": 2e-3,
    "replay-lr": 2e-3, "distill-lr": 1e-3, "kl": 0.05, "top-k": 16,
}  # fmt: skip
"""Options of the recipe, and their defaults."""


@dataclass(frozen=True)
class Recipe(Steps):
    """Options that all runs of a folder share, with the checkpoint that all begin with."""

    init: str


def measure(recipe: Recipe, place: Place, name: str, checkpoint: Path | str) -> None:
    """Tries held-out tasks with the model of a stage or row."""
    folder = place.of(f"{name}-on")
    once(folder, of.evaluation(KINDS[place.kind], checkpoint, recipe.tasks, folder / "run"))


def prepare(recipe: Recipe, place: Place) -> dict[str, Path]:
    """Runs the stages before the rows, measures them, and returns their models by skill, the new stage's last."""
    models = dict[str, Path]()
    for skill in KINDS[place.kind].skills:
        folder = place.of(skill)
        if skill == OLD:
            steps, run = recipe.reasoning, folder / "run"
            once(folder, [*of.learning(recipe, steps, recipe.init, 80, place.seed, run), *of.ON_OLD])
        else:
            teach(recipe, place, skill, list(models.values())[-1])
        models[skill] = folder / "run"
        measure(recipe, place, skill, models[skill])
    return models


def teach(recipe: Recipe, place: Place, skill: str, init: Path) -> None:
    """Runs a stage of fine-tuning on the oracle's replies; some kinds then train the new skill by its rewards."""
    kind, folder, data = KINDS[place.kind], place.of(skill), place.of("data" if skill == NEW else f"{skill}-data")
    once(data, of.demonstrations(recipe, kind, skill, data / "run"))
    tuned = place.of("tuned") if kind.rl else folder
    once(tuned, of.tuning(recipe.sft, recipe.sft_lr, init, kept(data), place.seed, tuned / "run"))
    if kind.rl:
        shared = of.learning(recipe, recipe.rl, str(tuned / "run"), kind.tokens, place.seed, folder / "run")
        once(folder, [*shared, *of.mixture(kind, [skill])])


def kept(place: Path) -> list[Path]:
    """Returns the folders of records below a command's folder."""
    return sorted(place.glob("run/**/kept"))


def distill(recipe: Recipe, place: Place, row: str, models: Mapping[str, Path], folder: Path) -> None:
    """Runs a row of `BALANCES`."""
    once(folder, of.distillation(recipe, KINDS[place.kind], row, models, place.seed, folder / "run"))


def replay(recipe: Recipe, place: Place, row: str, models: Mapping[str, Path], folder: Path) -> None:
    """Runs the row."""
    sampled = place.of("sampled")
    once(sampled, of.sampling(recipe, models[OLD], sampled / "run"))
    folders = [*kept(sampled), *kept(place.of("data"))]
    once(folder, of.tuning(recipe.replay, recipe.replay_lr, models[NEW], folders, place.seed, folder / "run"))


def rl_kl(recipe: Recipe, place: Place, row: str, models: Mapping[str, Path], folder: Path) -> None:
    """Runs the row."""
    shared = of.learning(recipe, recipe.rl_kl, str(models[NEW]), 80, place.seed, folder / "run")
    once(folder, [*shared, *of.ON_OLD, of.HOPELESS, f"algorithm.kl={recipe.kl}"])


def rl_both(recipe: Recipe, place: Place, row: str, models: Mapping[str, Path], folder: Path) -> None:
    """Runs the row."""
    kind = KINDS[place.kind]
    shared = of.learning(recipe, recipe.rl_both, str(models[NEW]), max(80, kind.tokens), place.seed, folder / "run")
    once(folder, [*shared, *of.mixture(kind), of.HOPELESS])


def average(recipe: Recipe, place: Place, row: str, models: Mapping[str, Path], folder: Path) -> None:
    """Runs the row: writes the mean of two models, which takes no time that counts."""
    import torch

    from arcforge_core.checkpoint.pretrained import load_with_tokenizer, save_pretrained
    from arcforge_core.ops.hardware import build_hardware
    from arcforge_core.plugins.loader import registry

    if (folder / "done.json").exists():
        return
    hardware: Any = registry().get("hardware", "cpu").load_schema()()
    both = (load_with_tokenizer(str(models[skill]), build_hardware(hardware)) for skill in (OLD, NEW))
    (first, tokenizer), (second, _) = both
    others = second.state_dict()
    with torch.no_grad():
        for name, weight in first.state_dict().items():
            if weight.is_floating_point():
                weight.copy_((weight.float() + others[name].float()) / 2)
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained(first, folder / "run", tokenizer)
    (folder / "done.json").write_text(json.dumps({"wall": 0.0, "processor": 0.0}))


RUNS: dict[str, Callable[[Recipe, Place, str, Mapping[str, Path], Path], None]] = {
    "distill": distill, "tokens": distill, "replay": replay, "rl_kl": rl_kl, "rl_both": rl_both, "average": average,
}  # fmt: skip


def learn(recipe: Recipe, place: Place, row: str) -> None:
    """Runs a row with a seed, and before it the stages that it needs; measures all skills."""
    models = prepare(recipe, place)
    folder = place.of(row)
    RUNS[row](recipe, place, row, models, folder)
    measure(recipe, place, row, folder / "run")


def parser() -> argparse.ArgumentParser:
    """Returns the options."""
    made = options_of("forgetting", __doc__, RECIPE)
    made.add_argument("--kinds", nargs="*", default=["chat"], choices=list(KINDS))
    made.add_argument("--rows", nargs="*", choices=list(ROWS), help="those of the kinds, unless they are named")
    return made


def rows_by_kind(kinds: Sequence[str], named: Sequence[str] | None) -> dict[str, list[str]]:
    """Returns the rows of each kind: all that it has, or those that were named.

    Raises:
        SystemExit: no kind has a row that was named.
    """
    found = {kind: [row for row in KINDS[kind].rows if named is None or row in named] for kind in kinds}
    for row in named or ():
        if not any(row in of_kind for of_kind in found.values()):
            accepted = "; ".join(f"{kind} has {', '.join(KINDS[kind].rows)}" for kind in kinds)
            raise SystemExit(f"--rows {row}: no row of --kinds {' '.join(kinds)}: {accepted}")
    return found


def runs_of(options: argparse.Namespace, recipe: Recipe, seeds: Sequence[int]) -> list[Run]:
    """Returns all runs of the options."""
    rows = rows_by_kind(options.kinds, options.rows)
    places = [Place(options.out, kind, seed) for kind in options.kinds for seed in seeds]
    return [
        (partial(place.has, row), partial(learn, recipe, place, row)) for place in places for row in rows[place.kind]
    ]


def main() -> None:
    """Runs the missing ones, and prints."""
    run_all(
        "forgetting", parser(), QUICK, Recipe, runs_of,
        lambda options, seeds: report(options.out, rows_by_kind(options.kinds, options.rows), seeds),
    )  # fmt: skip


if __name__ == "__main__":
    main()
