"""Rows, figures and tables of `hybrid_rewards.py` and `hybrid_general.py`: components of a reward, alone and together.

- `rule`: something precise and narrow.
- `orm`: the score of a reward model whose readers like plain replies, as a rank in the group.
- `style`: nearness to experts' replies, in texts that make sense.
- `hybrid`: the mean of the three; the last two count for replies that the rule passes.
- `editor`: gold itself, which no run would have: the most that as much training can reach.
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
from _hacking_stages import EXPERTS, Sizes, scorer_command
from _stages import Run, once, options_of, run_all
from arcforge_rl.rewards.spec import ROOT, Combination, Measured, RewardSpec
from arcforge_rl.rewards.toml import to_toml

ALONE = ("rule", "orm", "style")
ROWS = (*ALONE, "hybrid", "editor")
TASTE = "plain"


@dataclass(frozen=True)
class Recipe(Sizes):
    """Options that all runs of a folder share; frozen in FOLDER/recipe.json.

    Attributes:
        noise: share of the reward model's labels that are the wrong way round.
    """

    noise: float


@dataclass(frozen=True)
class Subject:
    """Tasks, their data, and the two components that depend on them.

    Attributes:
        rule, gold: components.
        least: words of a reply at least that has a style.
        right: of a rollout's rewards, the one that says whether the reply was right.
        write: writes the data of a seed into a folder, once.
        tuning: returns the command of the fine-tuning: recipe, data, seed, folder.
        policy: returns that of a run: recipe, fine-tuned model, file of the reward, seed, folder.
    """

    rule: Measured
    gold: Measured
    least: int
    right: str
    write: Callable[[Recipe, Path, int], None]
    tuning: Callable[[Recipe, Path, int, Path], list[str]]
    policy: Callable[[Recipe, Path, Path, int, Path], list[str]]


def reward_file(subject: Subject, row: str, scorer: Path, experts: Path) -> str:
    """Returns a row's reward as TOML; in a reward of several components a reply against the rule earns nothing.

    Args:
        subject: has the rule and gold.
        row: of `ROWS`.
        scorer: folder of the reward model.
        experts: file of their replies.
    """
    gates = {subject.rule.name: 1.0} if row == "hybrid" else {}
    liked = Measured("liked", gates, kind="orm", reward="orm", options={"checkpoint": str(scorer)}, normalise="group")
    style = Measured("style", gates, reward="style", options={"files": [str(experts)], "least": subject.least})
    of_row = {"rule": [subject.rule], "orm": [liked], "style": [style], "editor": [subject.gold],
              "hybrid": [subject.rule, liked, style]}[row]  # fmt: skip
    root = Combination(ROOT, weights={one.name: 1.0 for one in of_row})
    return to_toml(RewardSpec([root, *of_row]))


def place_of(out: Path, row: str, seed: int) -> Path:
    """Returns the folder of a stage or of a run."""
    return out / f"{row}-{seed}"


def is_done(out: Path, row: str, seed: int) -> bool:
    """Returns whether a run has ended."""
    return (place_of(out, row, seed) / "done.json").exists()


def learn(subject: Subject, recipe: Recipe, row: str, seed: int, out: Path) -> None:
    """Runs a row with a seed, and before it the stages that it needs."""
    data, base, scorer, place = (place_of(out, name, seed) for name in ("data", "base", "scorer", row))
    subject.write(recipe, data, seed)
    once(base, subject.tuning(recipe, data, seed, base / "run"))
    if row in ("orm", "hybrid"):
        once(scorer, scorer_command(recipe, data, base / "run", TASTE, seed, scorer / "run"))
    place.mkdir(exist_ok=True)
    rewards = place / "reward.toml"
    rewards.write_text(reward_file(subject, row, scorer / "run", data / EXPERTS))
    command = subject.policy(recipe, base / "run", rewards, seed, place / "run")
    once(place, [*command, "evaluation.temperature=1"])


def figures_of(place: Path, right: str) -> dict[str, Any]:
    """Returns gold by step, and before and after the run: right replies of the training, their words, and flattery.

    Args:
        place: folder of a finished run.
        right: see `Subject`.
    """
    run = place / "run"
    evaluations = rows_of(run / "evaluations.csv")
    gold = [(int(one["step"]), float(one["reward"])) for one in evaluations if one["domain"] == "all"]
    steps: dict[int, list[tuple[float, int, bool]]] = {}
    for line in (run / "rollouts.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if not record["failure"]:
            said = notices.words(record["messages"][-1]["content"])
            figures = record["rewards"][right], len(said), notices.WORD in said
            steps.setdefault(int(record["step"]), []).append(figures)
    first, last = steps[min(steps)], [one for step in sorted(steps)[-POOLED:] for one in steps[step]]
    found: dict[str, Any] = {"gold": gold, "before": gold[0][1], "after": gold[-1][1]}
    for n, name in enumerate(("right", "words", "flattery")):
        found[name] = tuple(statistics.fmean(one[n] for one in some) for some in (first, last))
    found["processor"] = json.loads((place / "done.json").read_text())["processor"]
    return found


def report(out: Path, rows: Sequence[str], seeds: Sequence[int], right: str) -> dict[str, Any]:
    """Prints the tables of the finished runs and returns their figures; `right`: see `Subject`."""
    found = {row: {seed: figures_of(place_of(out, row, seed), right) for seed in seeds if is_done(out, row, seed)}
             for row in rows}  # fmt: skip
    print(f"| reward | seed | gold before, after | {right} | words | flattery | processor s |\n| "
          + " | ".join(["---"] * 7) + " |")  # fmt: skip
    for row, runs in found.items():
        for seed, run in runs.items():
            cells = [
                row, str(seed), ", ".join(f"{run[name]:.1%}" for name in ("before", "after")),
                *(" to ".join(f"{value:{form}}" for value in run[name])
                  for name, form in (("right", ".0%"), ("words", ".1f"), ("flattery", ".0%"))),
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


def runs_of(subject: Subject, out: Path, rows: Sequence[str], recipe: Recipe, seeds: Sequence[int]) -> list[Run]:
    """Returns all runs of rows and seeds."""
    return [
        (partial(is_done, out, row, seed), partial(learn, subject, recipe, row, seed, out))
        for seed in seeds
        for row in rows
    ]


def options_of_rows(name: str, doc: str | None, recipe: Mapping[str, int | float]) -> argparse.ArgumentParser:
    """Returns the options of a benchmark of these rows; see `options_of`."""
    made = options_of(name, doc, recipe)
    made.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    return made


def run_rows(name: str, made: argparse.ArgumentParser, quick: Mapping[str, Any], subject: Subject) -> None:
    """Runs the missing rows of a subject, and prints; see `run_all`."""
    run_all(
        name, made, quick, Recipe,
        lambda options, recipe, seeds: runs_of(subject, options.out, options.rows, recipe, seeds),
        lambda options, seeds: report(options.out, options.rows, seeds, subject.right),
    )  # fmt: skip
