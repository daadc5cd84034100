"""A rule, a reward model and experts' style, each alone and as one hybrid reward: gold of held-out tasks, by seed.

    python benchmarks/hybrid_rewards.py [--out FOLDER] [--rows ROW ...] [--seeds 3]
        [--minutes 90] [--quick] [--table] [--json FILE]

For each seed the demo's model is fine-tuned on notices of careless writers (``_notices.py``), and a reward model on
pairs labelled by readers who want a notice brief and plain, and cannot tell whether it is right; a share `--noise` of
the labels is the wrong way round. Each row trains the policy on a reward of its own:

- `rule`: the facts are there.
- `orm`: the reward model's score, as a rank in the group.
- `style`: nearness to experts' notices, in texts that make sense.
- `hybrid`: the mean of the three; the last two count for replies with the facts alone.
- `editor`: gold itself, which no run would have: the most that as much training can reach.

Gold is the strict editor's: right, brief, ended, without flattery. It is measured at temperature 1, as a policy that
errs now and then is right in its likeliest reply. Facts, words and flattery are those of the training replies, in the
first step and in the last three.

Every stage and every (row, seed) has a folder of its own in FOLDER. Finished ones are not run again, an unfinished one
begins again, and none is begun that would not end within `--minutes`, by the longest so far: the same command
continues. `--table` runs nothing. `--quick` runs every kind of command once, too briefly to learn anything.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _notices as notices
from _hacking_rows import POOLED, rows_of
from _hacking_stages import EXPERTS, Sizes, policy_command, scorer_command, tuning_command, write_data
from _stages import Run, once, options_of, run_all
from arcforge_rl.rewards.spec import ROOT, Combination, Measured, RewardSpec
from arcforge_rl.rewards.toml import to_toml

ROWS: Mapping[str, tuple[str, ...]] = {
    "rule": ("facts",), "orm": ("liked",), "style": ("style",), "hybrid": ("facts", "liked", "style"),
    "editor": ("gold",),
}  # fmt: skip
"""The components of each row's reward, of equal weights."""
ALONE = ("rule", "orm", "style")
TASTE = "plain"
FIGURES: Mapping[str, Callable[[float, list[str]], float]] = {
    "facts": lambda facts, said: facts, "words": lambda facts, said: len(said),
    "flattery": lambda facts, said: notices.WORD in said,
}  # fmt: skip
"""Of a training reply: whether it has the facts, its words, whether it flatters."""
QUICK = {
    "seeds": 1, "tuning_steps": 2, "scorer_steps": 2, "steps": 2, "groups": 2, "group_size": 4, "tasks": 8,
    "notices": 60, "pairs": 60, "experts": 40,
}  # fmt: skip
"""Options of ``--quick``."""
RECIPE = {
    "tuning-steps": 240, "scorer-steps": 40, "steps": 40, "groups": 8, "group-size": 8, "tasks": 400, "eval-every": 10,
    "notices": 4000, "pairs": 2000, "experts": 400, "lr": 1e-4, "noise": 0.1,
}  # fmt: skip
"""Options of the recipe, and their defaults."""


@dataclass(frozen=True)
class Recipe(Sizes):
    """Options that all runs of a folder share; frozen in FOLDER/recipe.json.

    Attributes:
        noise: share of the reward model's labels that are the wrong way round.
    """

    noise: float


def reward_file(row: str, scorer: Path, experts: Path) -> str:
    """Returns a row's reward as TOML; in a reward of several components a reply without the facts earns nothing.

    Args:
        row: of `ROWS`.
        scorer: folder of the reward model.
        experts: file of their replies.
    """
    names = ROWS[row]
    gates = {"facts": 1.0} if len(names) > 1 else {}
    measured = [
        Measured("liked", gates, kind="orm", reward="orm", options={"checkpoint": str(scorer)}, normalise="group"),
        Measured("style", gates, reward="style", options={"files": [str(experts)], "least": 3}),
    ]
    root = Combination(ROOT, weights=dict.fromkeys(names, 1.0))
    return to_toml(RewardSpec([root, *(one for one in measured if one.name in names)]))


def place_of(out: Path, row: str, seed: int) -> Path:
    """Returns the folder of a stage or of a run."""
    return out / f"{row}-{seed}"


def is_done(out: Path, row: str, seed: int) -> bool:
    """Returns whether a run has ended."""
    return (place_of(out, row, seed) / "done.json").exists()


def learn(recipe: Recipe, row: str, seed: int, out: Path) -> None:
    """Runs a row with a seed, and before it the stages that it needs."""
    data, base, scorer, place = (place_of(out, name, seed) for name in ("data", "base", "scorer", row))
    write_data(recipe, data, notices.careless, [TASTE], seed, recipe.noise)
    once(base, tuning_command(recipe, data, seed, base / "run"))
    if "liked" in ROWS[row]:
        once(scorer, scorer_command(recipe, data, base / "run", TASTE, seed, scorer / "run"))
    place.mkdir(exist_ok=True)
    rewards = place / "reward.toml"
    rewards.write_text(reward_file(row, scorer / "run", data / EXPERTS))
    once(place, [*policy_command(recipe, base / "run", rewards, seed, place / "run"), "evaluation.temperature=1"])


def figures_of(place: Path) -> dict[str, Any]:
    """Returns gold by step, and before and after the run: facts, words and flattery of the training replies."""
    run = place / "run"
    gold = [(int(one["step"]), float(one["reward"])) for one in rows_of(run / "evaluations.csv")
            if one["domain"] == "all"]  # fmt: skip
    replies: dict[int, list[tuple[float, list[str]]]] = {}
    for line in (run / "rollouts.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if not record["failure"]:
            said = notices.words(record["messages"][-1]["content"])
            replies.setdefault(int(record["step"]), []).append((record["rewards"]["facts"], said))
    first, last = replies[min(replies)], [one for step in sorted(replies)[-POOLED:] for one in replies[step]]
    found: dict[str, Any] = {"gold": gold, "before": gold[0][1], "after": gold[-1][1]}
    for name, value in FIGURES.items():
        found[name] = tuple(statistics.fmean(value(facts, said) for facts, said in some) for some in (first, last))
    found["processor"] = json.loads((place / "done.json").read_text())["processor"]
    return found


def report(out: Path, rows: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Prints the tables of the finished runs and returns their figures."""
    found = {row: {seed: figures_of(place_of(out, row, seed)) for seed in seeds if is_done(out, row, seed)}
             for row in rows}  # fmt: skip
    print("| reward | seed | gold before, after | facts | words | flattery | processor s |\n| "
          + " | ".join(["---"] * 7) + " |")  # fmt: skip
    for row, runs in found.items():
        for seed, run in runs.items():
            cells = [
                row, str(seed), ", ".join(f"{run[name]:.1%}" for name in ("before", "after")),
                *(" to ".join(f"{value:{form}}" for value in run[name])
                  for name, form in (("facts", ".0%"), ("words", ".1f"), ("flattery", ".0%"))),
                f"{run['processor']:.0f}",
            ]  # fmt: skip
            print(f"| {' | '.join(cells)} |")
    compared = {seed: ahead for seed in seeds if (ahead := lead(found, seed))}
    print("\n| seed | the hybrid's gold above that of | above all |\n| --- | --- | --- |")
    for seed, ahead in compared.items():
        points = ", ".join(f"{row} {100 * value:+.1f}" for row, value in ahead.items())
        print(f"| {seed} | {points} | {'yes' if min(ahead.values()) > 0 else 'no'} |")
    return {"runs": found, "lead": compared}


def lead(found: Mapping[str, Mapping[int, Mapping[str, Any]]], seed: int) -> dict[str, float]:
    """Returns by how much the hybrid's gold is above that of each component of a seed; nothing before all have run."""
    runs = {row: found.get(row, {}).get(seed) for row in ("hybrid", *ALONE)}
    if None in runs.values():
        return {}
    return {row: runs["hybrid"]["after"] - runs[row]["after"] for row in ALONE}  # type: ignore[index]


def parser() -> argparse.ArgumentParser:
    """Returns the options."""
    made = options_of("hybrid_rewards", __doc__, RECIPE)
    made.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    return made


def runs_of(options: argparse.Namespace, recipe: Recipe, seeds: Sequence[int]) -> list[Run]:
    """Returns all runs of the options."""
    return [
        (partial(is_done, options.out, row, seed), partial(learn, recipe, row, seed, options.out))
        for seed in seeds
        for row in options.rows
    ]


def main() -> None:
    """Runs the missing ones, and prints."""
    run_all(
        "hybrid_rewards", parser(), QUICK, Recipe, runs_of,
        lambda options, seeds: report(options.out, options.rows, seeds),
    )  # fmt: skip


if __name__ == "__main__":
    main()
