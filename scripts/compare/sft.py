"""Supervised fine-tuning: conversations, training on them, and the suite that plays held-out ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from compare.policy import STEPS, Case, Inputs, make_conversations
from compare.trees import Tree
from compare.values import read_lines, read_rows, weights

EVALUATIONS = {
    "greedy": ("temperature=0",),
    "sampled": ("temperature=1", "seed=3"),
    "simple engine": ("temperature=0", "engine=simple", "limit=10"),
    "recorded tools": ("temperature=0", "toolbox=recorded"),
    "greedy trained longer": ("temperature=0",),
}


def sft(inputs: Inputs, tree: Tree, folder: Path) -> Iterator[Case]:
    """Conversations and a training run of each tree; evaluations of the first tree's checkpoints."""
    yield "conversations", partial(made, inputs, tree, folder)
    yield f"training, {STEPS} steps", partial(trained, inputs, tree, folder)
    for number, name in enumerate(EVALUATIONS):
        yield name, partial(evaluate, inputs, tree, name, folder / f"{number}")


def made(inputs: Inputs, tree: Tree, folder: Path) -> dict[str, Any]:
    """Returns the conversations that a tree makes."""
    root = inputs.conversations if tree is inputs.tree else make_conversations(tree, folder / "conversations")
    files = sorted(root.rglob("*.jsonl"))
    return {str(path.relative_to(root)): [json.loads(line) for line in path.open(encoding="utf-8")] for path in files}


def trained(inputs: Inputs, tree: Tree, folder: Path) -> dict[str, Any]:
    """Returns the metrics and final weights of training."""
    run = inputs.run if tree is inputs.tree else inputs.fine_tune(tree, folder / "run")
    return {"metrics": read_rows(run / "metrics.csv"), "weights": weights(inputs.checkpoint(run, STEPS))}


def evaluate(inputs: Inputs, tree: Tree, name: str, output: Path) -> dict[str, Any]:
    """Returns figures, answers and messages of the held-out conversations."""
    checkpoint = inputs.model if "longer" in name else inputs.policy
    settings = [f"checkpoint={checkpoint}", f"files=[{','.join(inputs.heldout)}]", f"suite.output={output}"]
    settings += ["max_new_tokens=48", "hardware=cpu", *EVALUATIONS[name]]
    tree.run("arcforge-eval", "suite=conversations", *settings)
    fields = ("source", "verdict", "answers", "tokens", "obeyed", "messages")
    figures = json.loads((output / "generation.json").read_text(encoding="utf-8"))["figures"]
    file = next(output / name for name in ("rollouts.jsonl", "transcripts.jsonl") if (output / name).exists())
    rows = read_lines(file, *fields)
    return {"figures": figures, "conversations": [{**row, "messages": messages(row)} for row in rows]}


def messages(row: dict[str, Any]) -> list[Any]:
    """Returns role, content, reasoning and calls of each message of a rollout, or of a transcript of before."""
    found = []
    for message in row["messages"]:
        calls = [call.get("function", call) for call in message.get("tool_calls", ())]
        reasoning = message.get("reasoning", message.get("reasoning_content"))
        pairs = [(call["name"], call["arguments"]) for call in calls]
        found.append([message["role"], message["content"], reasoning, pairs])
    return found
