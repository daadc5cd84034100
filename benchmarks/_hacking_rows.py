"""The rows of ``benchmarks/reward_hacking.py``: ways to hold a policy whose reward is flawed; figures of runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALARMS = ("gold", "length", "repetition", "refusals", "malformed", "canaries")
POOLED = 3
"""Steps whose replies are compared with experts' together: those of one are few."""


@dataclass(frozen=True)
class Row:
    """One way of training.

    Attributes:
        title: in the table.
        gate: no credit for replies without the facts.
        anchor: experts' replies in every update.
        style: their style, in texts that make sense, as a component with the weight of the reward model.
        monitor: alarms end the run with the weights that were the best by gold.
    """

    title: str
    gate: bool = False
    anchor: bool = False
    style: bool = False
    monitor: bool = False


ROWS = {
    "none": Row("nothing"),
    "gate": Row("gate", gate=True),
    "anchor": Row("anchor", anchor=True),
    "sense": Row("style and sense", style=True),  # runs called "style" had no factor of sense
    "monitor": Row("monitor", monitor=True),
    "all": Row("gate, anchor, monitor", gate=True, anchor=True, monitor=True),
}


def reward_file(row: Row, checkpoint: str, experts: str) -> str:
    """Returns a row's reward as TOML."""
    weights = "liked = 1.0, style = 1.0" if row.style else "liked = 1.0"
    gate = "gates = { facts = 1.0 }\n" if row.gate else ""
    style = f'\n[component.style]\nreward = "style"\noptions = {{ files = [{json.dumps(experts)}], least = 3 }}\n'
    return (
        f"[[reward]]\nweights = {{ {weights} }}\n\n"
        f'[component.liked]\nkind = "orm"\nreward = "orm"\noptions = {{ checkpoint = {json.dumps(checkpoint)} }}\n'
        f'normalise = "group"\n{gate}{style if row.style else ""}'
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a table; none of a file that is not there."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def figures_of(folder: Path, experts: str, row: Row) -> dict[str, Any]:
    """Returns the course of gold, and by step the reward model's score, the length and the distance from experts.

    Args:
        folder: of a finished run.
        experts: file of their replies.
        row: of the run.
    """
    gold = [(int(one["step"]), float(one["reward"])) for one in rows_of(folder / "evaluations.csv")
            if one["domain"] == "all"]  # fmt: skip
    alarms = [(int(one["step"]), one["figure"], float(one["value"])) for one in rows_of(folder / "warnings.csv")
              if one["figure"] in ALARMS]  # fmt: skip
    steps: dict[int, list[dict[str, Any]]] = {}
    for line in (folder / "rollouts.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if not record["failure"]:
            steps.setdefault(int(record["step"]), []).append(record)
    return {"gold": gold, **gold_figures(gold, alarms, row.monitor), "steps": step_figures(steps, experts)}


def gold_figures(
    gold: Sequence[tuple[int, float]], alarms: Sequence[tuple[int, str, float]], rolls_back: bool
) -> dict[str, Any]:
    """Returns gold before and after, its fall, the first alarm, and how far gold had fallen below its best then.

    An alarm ends a run that rolls back; its evaluation at that step is then of the weights that were taken back, and
    gold at the alarm is the value that the alarm tells, or the one before.

    Args:
        gold: steps and held-out rewards, in order.
        alarms: steps, figures and their values, in order.
        rolls_back: whether the run does.
    """
    found: dict[str, Any] = {"before": gold[0][1], "after": gold[-1][1], "fall": gold[0][1] - gold[-1][1]}
    found["lowest"] = min(reward for _, reward in gold)
    if alarms:
        step, figure, _ = alarms[0]
        known = [reward for at, reward in gold if (at < step if rolls_back else at <= step)]
        known += [value for at, name, value in alarms if rolls_back and at == step and name == "gold"]
        found |= {"alarm": step, "alarm_of": figure, "fall_at_alarm": max(known) - known[-1]}
    return found


def step_figures(steps: Mapping[int, Sequence[Mapping[str, Any]]], experts: str) -> dict[int, dict[str, float]]:
    """Returns score, words of a reply, and AUC against experts' replies, by step."""
    import numpy as np

    from arcforge_rl.configs.rewards import StyleConfig
    from arcforge_rl.rewards.style.discriminator import told_apart
    from arcforge_rl.rewards.style.features import all_features
    from arcforge_rl.rewards.style.style import Style

    style, found = Style(StyleConfig(files=[experts], least=1)), dict[int, dict[str, float]]()
    for step, records in steps.items():
        pooled = [one["messages"][-1]["content"] for n in range(POOLED) for one in steps.get(step - n, ())]
        texts = [one["messages"][-1]["content"] for one in records]
        scores = [one.get("raw", {}).get("liked", one["rewards"].get("liked", 0.0)) for one in records]
        people = style.alike([style.length_of(max(1, len(text.split()))) for text in pooled])
        found[step] = {
            "score": float(np.mean(scores)),
            "words": float(np.mean([len(text.split()) for text in texts])),
            "auc": told_apart(all_features(pooled), people),
        }
    return found


def at_equal_score(plain: Mapping[int, Mapping[str, float]], held: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """Returns AUC's excess over chance and the growth of length, with and without an anchor, at the same score.

    The anchored run's last step is compared with the first one of the plain run that has its score; if there is none,
    the plain run's last step with the first one of the anchored run that has its.

    Args:
        plain: figures by step of the run without an anchor.
        held: of that with it.
    """
    last, reached = held[max(held)], None
    for step in sorted(plain):
        if plain[step]["score"] >= last["score"]:
            reached = plain[step]
            break
    if reached is None:
        reached = plain[max(plain)]
        last = next((held[step] for step in sorted(held) if held[step]["score"] >= reached["score"]), last)
    begun = [run[min(run)]["words"] for run in (plain, held)]
    return {
        "score": last["score"],
        "excess": (reached["auc"] - 0.5, last["auc"] - 0.5),
        "growth": (reached["words"] / begun[0] - 1.0, last["words"] / begun[1] - 1.0),
    }
