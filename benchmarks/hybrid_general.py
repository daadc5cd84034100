"""As `hybrid_rewards.py` on the mixture of all objectives of general RL (``environment=general``), by seed.

    python benchmarks/hybrid_general.py [--out FOLDER] [--rows ROW ...] [--seeds 3]
        [--minutes 90] [--quick] [--table] [--json FILE]

For each seed the demo's model is fine-tuned on the oracle's conversations with careless last replies
(``_packaging.py``): a tenth belong to another task, four fifths have a stock phrase after them, three fifths a line
before them. A reward model is trained on pairs of such replies, labelled by readers who want them brief and plain, and
cannot tell whether they are right; a share `--noise` of the labels is the wrong way round. Each row
(``_hybrid_rows.py``) trains the policy on a reward of its own: `rule`, `orm`, `style`, `hybrid`, and `editor`, which is
gold itself. The rule: the verifiers pass the reply without its first line, its last one, or both.

Gold is the editor's: they pass the reply as it is, and it has no packaging. It is measured on held-out tasks at
temperature 1. Right replies (`passed`), words and flattery are those of the training, in the first step and in the
last three.

Folders, and the options that are not named here, are those of `hybrid_rewards.py`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from _hacking_stages import EXPERTS, PAIRS, policy_command, tuning_command
from _hybrid_rows import TASTE, Recipe, Subject, options_of_rows, run_rows
from _packaging import PASSED, write_files
from _stages import once
from arcforge_rl.rewards.spec import ROOT, Measured

CARELESS = "careless"
"""Folder of conversations in that of the data."""
LONGEST, TOKENS = 512, 160
"""Tokens of a conversation, and of a reply, at most."""
QUICK = {
    "seeds": 1, "tuning_steps": 2, "scorer_steps": 2, "steps": 2, "groups": 2, "group_size": 4, "tasks": 11,
    "notices": 110, "pairs": 60, "experts": 60,
}  # fmt: skip
"""Options of ``--quick``."""
RECIPE = {
    "tuning-steps": 600, "scorer-steps": 160, "steps": 30, "groups": 11, "group-size": 8, "tasks": 440,
    "eval-every": 30, "notices": 8800, "pairs": 2000, "experts": 1100, "lr": 3e-4, "noise": 0.1,
}  # fmt: skip
"""Options of the recipe, and their defaults."""


def write(recipe: Recipe, data: Path, seed: int) -> None:
    """Writes the data of a seed, once."""
    note = data / "written.json"
    if note.exists():
        return
    command = ["env", "environment=general", "agent=oracle", "records=true", f"episodes={recipe.notices}"]
    once(data, [*command, f"output_dir={data / 'run'}"])
    kept = sorted(data.glob("run/**/kept"))
    counts = recipe.experts, recipe.pairs
    pairs = data / PAIRS.format(taste=TASTE)
    write_files(kept, data / CARELESS, data / EXPERTS, pairs, counts, seed, recipe.noise)
    note.write_text(json.dumps({"seed": seed}))


def tuning(recipe: Recipe, data: Path, seed: int, folder: Path) -> list[str]:
    """Returns the command of the fine-tuning."""
    return tuning_command(recipe, f"data.folders=[{data / CARELESS}]", seed, folder, LONGEST)


def policy(recipe: Recipe, base: Path, rewards: Path, seed: int, folder: Path) -> list[str]:
    """Returns the command of a run; a near tie of two experts in one token may be a gap of 1e-4 on average."""
    return [*policy_command(recipe, base, rewards, seed, folder, "edited", TOKENS), "trainer.max_gap=1e-3"]


MIXTURE = Subject(Measured(PASSED), Measured("gold", of=ROOT), 1, PASSED, write, tuning, policy)


def parser() -> argparse.ArgumentParser:
    """Returns the options."""
    return options_of_rows("hybrid_general", __doc__, RECIPE)


if __name__ == "__main__":
    run_rows("hybrid_general", parser(), QUICK, MIXTURE)
