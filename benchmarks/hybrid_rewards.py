"""A rule, a reward model and experts' style, each alone and as one hybrid reward: gold of held-out tasks, by seed.

    python benchmarks/hybrid_rewards.py [--out FOLDER] [--rows ROW ...] [--seeds 3]
        [--minutes 90] [--quick] [--table] [--json FILE]

For each seed the demo's model is fine-tuned on notices of careless writers (``_notices.py``), and a reward model on
pairs labelled by readers who want a notice brief and plain, and cannot tell whether it is right; a share `--noise` of
the labels is the wrong way round. Each row (``_hybrid_rows.py``) trains the policy on a reward of its own: `rule`,
`orm`, `style`, `hybrid`, and `editor`, which is gold itself. The rule: the facts are there.

Gold is the strict editor's: right, brief, ended, without flattery. It is measured at temperature 1, as a policy that
errs now and then is right in its likeliest reply. Facts, words and flattery are those of the training replies, in the
first step and in the last three.

Every stage and every (row, seed) has a folder of its own in FOLDER. Finished ones are not run again, an unfinished one
begins again, and none is begun that would not end within `--minutes`, by the longest so far: the same command
continues. `--table` runs nothing. `--quick` runs every kind of command once, too briefly to learn anything.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import _notices as notices
from _hacking_stages import chats, policy_command, tuning_command, write_data
from _hybrid_rows import TASTE, Recipe, Subject, options_of_rows, run_rows
from arcforge_rl.rewards.spec import Measured

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


def write(recipe: Recipe, data: Path, seed: int) -> None:
    """Writes the data of a seed, once."""
    write_data(recipe, data, notices.careless, [TASTE], seed, recipe.noise)


def tuning(recipe: Recipe, data: Path, seed: int, folder: Path) -> list[str]:
    """Returns the command of the fine-tuning."""
    return tuning_command(recipe, chats(data), seed, folder)


NOTICES = Subject(Measured("facts"), Measured("gold"), 3, "facts", write, tuning, policy_command)


def parser() -> argparse.ArgumentParser:
    """Returns the options."""
    return options_of_rows("hybrid_rewards", __doc__, RECIPE)


if __name__ == "__main__":
    run_rows("hybrid_rewards", parser(), QUICK, NOTICES)
