"""``procedure=NAME`` and the recipes that had one, in this version only: the job or pipeline that replaces each."""

from __future__ import annotations

import re
from collections.abc import Sequence

RECIPES = ("attention_ablation", "sft_mini", "sft_expressions")
"""Experiments of 0.1 that chose a procedure."""
OPTIONS = {
    "one_run": "",
    "attention_ablation": "ablation.",
    "made_conversations": "stages.conversations.",
    "sft_mini": "stages.conversations.",
    "sft_expressions": "stages.conversations.",
    "expert_iteration": "stages.tries.",
}
"""The replacement of ``procedure.`` in the options of each."""


def replacement(arguments: Sequence[str]) -> tuple[str, list[str]] | None:
    """Returns the command and arguments that replace an ``arcforge-train`` command of 0.1; None for current ones.

    A run that names ``data.folders`` has its conversations, and is one training run whatever its experiment.
    """
    given = dict(argument.partition("=")[::2] for argument in arguments)
    procedure, experiment = given.get("procedure"), given.get("experiment", "")
    name = experiment if experiment in RECIPES and "data.folders" not in given else procedure
    if name not in OPTIONS:
        return None
    words = [a for a in arguments if not re.match(r"procedure(\.folder|\.restart)?=", a)]
    if given.get("procedure.restart") == "true":
        words.append(f"stages.learn.init={given.get('init', 'null')}")
    words = [a.replace("procedure.rounds=", "stages.rounds.repeat=") for a in words]
    words = [re.sub(r"^(\+?)procedure\.", rf"{OPTIONS[name]}\1", a) for a in words]
    if name == "one_run":
        return "train", words
    if name == "attention_ablation":
        return "ablation", [re.sub(r"^ablation\.\+", "+ablation.", a) for a in words]
    return "pipeline", [f"pipeline={name}", *(a for a in words if a != f"experiment={name}")]
