"""Folders, figures and tables of ``benchmarks/forgetting.py``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _forgetting_rows import BALANCES, KINDS, NEW, OLD, ROWS
from _hacking_rows import rows_of


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

    def figures(self, name: str) -> dict[str, Figures]:
        """Returns the measured skills of a stage or row."""
        return figures_of(self.of(f"{name}-on"))


@dataclass(frozen=True)
class Figures:
    """Of a skill, in one evaluation.

    Attributes:
        reward: mean over its tasks.
        tokens: of a reply, in the mean.
    """

    reward: float
    tokens: float


def figures_of(place: Path) -> dict[str, Figures]:
    """Returns the figures of an evaluation by skill: the part of the mixture that a task is of."""
    found: dict[str, list[tuple[float, int]]] = {}
    (path,) = place.glob("run/**/rollouts.jsonl")
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if not row["failure"]:
            found.setdefault(row["task"].split("/")[0], []).append((row["rewards"]["reward"], row["length"]))
    return {skill: Figures(*map(statistics.fmean, zip(*some, strict=True))) for skill, some in found.items()}


def seeds_of(places: Sequence[Place], row: str) -> list[dict[str, Any]]:
    """Returns a row's figures by seed, of those that have it.

    They are pass@1 of each old skill, at its teacher's, after the new stage and at the end, with the mean tokens of its
    teacher's replies and the recovered share; pass@1 of the new skill and the kept share; the teachers' tokens.
    """
    seeds: list[dict[str, Any]] = []
    for place in places:
        kind = KINDS[place.kind]
        stages = [*kind.skills, row]
        if not all(map(place.has, stages)):
            continue
        by_stage = {name: place.figures(name) for name in stages}
        after, end = by_stage[NEW], by_stage[row]
        before = by_stage[kind.old[-1]]
        gained = after[NEW].reward - before[NEW].reward
        seeds.append({
            "seed": place.seed,
            "old": {skill: of_skill(by_stage[skill][skill], after[skill], end[skill]) for skill in kind.old},
            "new_before": before[NEW].reward, "new_best": after[NEW].reward, "new_end": end[NEW].reward,
            "kept": (end[NEW].reward - before[NEW].reward) / gained if gained > 0 else float("nan"),
            "processor": json.loads((place.of(row) / "done.json").read_text())["processor"],
            **({"teachers": teachers_of(place, row)} if row in BALANCES else {}),
        })  # fmt: skip
    return seeds


def of_skill(best: Figures, after: Figures, end: Figures) -> dict[str, float]:
    """Returns pass@1 of an old skill, the share of its loss that was recovered, and the tokens of its replies."""
    lost = best.reward - after.reward
    recovered = (end.reward - after.reward) / lost if lost > 0 else float("nan")
    return {"best": best.reward, "after": after.reward, "end": end.reward, "recovered": recovered,
            "tokens": best.tokens}  # fmt: skip


def teachers_of(place: Place, row: str) -> dict[str, dict[str, float]]:
    """Returns how many tokens each teacher scored in a distillation, and their mean share of the weights of a step."""
    steps = rows_of(place.of(row) / "run" / "metrics.csv")
    return {
        skill: {
            "tokens": sum(float(step[f"teacher_{skill}_tokens"]) for step in steps),
            "weight": statistics.fmean(float(step[f"teacher_{skill}_weight"]) for step in steps),
        }
        for skill in KINDS[place.kind].skills
    }


def report(out: Path, rows: Mapping[str, Sequence[str]], seeds: Sequence[int]) -> dict[str, Any]:
    """Prints the tables of the finished rows, which are named by kind, and returns their figures."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for kind, names in rows.items():
        by_row = {row: seeds_of([Place(out, kind, seed) for seed in seeds], row) for row in names}
        found[kind] = {row: lines for row, lines in by_row.items() if lines}
    print("| stage | brought back by | old skill: best, after the stage, end | new: before, best, end "
          "| recovered, by seed | kept, by seed | processor s |\n| " + " | ".join(["---"] * 7) + " |")  # fmt: skip
    for kind, by_row in found.items():
        for row, lines in by_row.items():
            for skill in KINDS[kind].old:
                print(text_of(kind, row, skill, lines))
    compared = [(row, one) for kind, by_row in found.items() if len(KINDS[kind].old) > 1
                for row, lines in by_row.items() for one in lines]  # fmt: skip
    if compared:
        print("\n| brought back by | seed | tokens of a reply | longest by shortest | teachers' tokens "
              "| shares of the weights |\n| " + " | ".join(["---"] * 6) + " |")  # fmt: skip
    for row, one in compared:
        print(lengths_of(row, one))
    return {"rows": found}


def text_of(kind: str, row: str, skill: str, seeds: Sequence[Mapping[str, Any]]) -> str:
    """Returns a line of the first table: means over seeds of the skills, shares of each seed."""

    def means(some: Sequence[Mapping[str, float]], *names: str) -> str:
        return ", ".join(f"{statistics.fmean(one[name] for one in some):.1%}" for name in names)

    old = [one["old"][skill] for one in seeds]
    cells = [
        KINDS[kind].title, ROWS[row], f"{skill}: {means(old, 'best', 'after', 'end')}",
        means(seeds, "new_before", "new_best", "new_end"), ", ".join(f"{one['recovered']:.0%}" for one in old),
        ", ".join(f"{one['kept']:.0%}" for one in seeds), f"{statistics.fmean(one['processor'] for one in seeds):.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def lengths_of(row: str, seed: Mapping[str, Any]) -> str:
    """Returns a line of the second table: how long the old skills' replies are, and what the teachers had."""
    tokens = {skill: one["tokens"] for skill, one in seed["old"].items()}
    cells = [
        ROWS[row], str(seed["seed"]), ", ".join(f"{skill} {count:.1f}" for skill, count in tokens.items()),
        f"{max(tokens.values()) / min(tokens.values()):.1f}",
        ", ".join(f"{skill} {one['tokens']:,.0f}" for skill, one in seed["teachers"].items()),
        ", ".join(f"{skill} {one['weight']:.1%}" for skill, one in seed["teachers"].items()),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"
