"""What the parts start from: conversations, and a tiny model that has learned to answer some of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from compare.trees import Tree

Case = tuple[str, Callable[[], Any]]
"""Name of a case, and the call that runs it and returns JSON values."""
STEPS = 200
"""Of the training of the model: half way it answers one sum in ten, and calls tools with mostly valid arguments."""
SETTINGS = (
    "model=tiny",
    "data=conversations",
    "+data.weights.reasoning=1",
    "+data.weights.agent=1",
    "data.filters=[]",
    "data.max_tokens=513",
    "data.tokenizer.vocab_size=512",
    "optimizer=muon_split",
    "optimizer.lr=4e-3",
    "optimizer.adamw_lr=null",
    "optimizer.weight_decay=0",
    "schedule=cosine",
    "schedule.warmup=0.05",
    "schedule.final=0.1",
    f"trainer.max_steps={STEPS}",
    "trainer.minutes=null",
    "trainer.sequence_length=512",
    "trainer.micro_batch_tokens=2048",
    "trainer.log_every=1",
    "trainer.eval_every=1000000",
    f"trainer.checkpoint_every={STEPS // 2}",
    "trainer.samples=0",
    "trainer.threads=1",
    "trainer.precision=fp32",
    "hardware=cpu",
    "seed=0",
)
CALCULATOR = {
    "name": "calculator",
    "description": "Computes an expression of numbers.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}


def sum_record(number: int, draw: random.Random) -> dict[str, Any]:
    """Returns a conversation about a sum of two digits: those with an odd number call the calculator."""
    left, right, sign = draw.randrange(10), draw.randrange(10), draw.choice("+-")
    sum_, result = f"{left}{sign}{right}", str(left + right if sign == "+" else left - right)
    checker = {"name": "number", "arguments": {"answer": result}}
    record = {"task": f"{number}", "thinking": "off", "checker": checker}
    answer = {"role": "assistant", "content": result}
    if number % 2 == 0:
        return {**record, "source": "sums", "messages": [{"role": "user", "content": f"{sum_}="}, answer]}
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": sum_}}}
    messages = [
        {"role": "user", "content": f"Use the calculator for {sum_}."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
        answer,
    ]
    return {**record, "source": "tools", "messages": messages, "tools": [{"type": "function", "function": CALCULATOR}]}


def write_records(path: Path, records: list[dict[str, Any]]) -> str:
    """Writes a jsonl file and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def make_conversations(tree: Tree, folder: Path) -> Path:
    """Has a tree make conversations with tools, and returns their folder."""
    sizes = ("count=400", "heldout=20", "seed=0")
    tree.run("arcforge-conversations", "sources=[calculator,lookup]", *sizes, f"output_dir={folder}")
    return folder


@dataclass
class Inputs:
    """What both trees are given; made once, by the first tree, when a part asks for it.

    Attributes:
        tree: the first tree.
        folder: of the files.
        steps: of each run, None for the default of its part.
        overrides: of the caller, for training.
    """

    tree: Tree
    folder: Path
    steps: int | None = None
    overrides: list[str] = field(default_factory=list)

    @cached_property
    def conversations(self) -> Path:
        """Conversations that the tree made."""
        return make_conversations(self.tree, self.folder / "conversations")

    @cached_property
    def heldout(self) -> list[str]:
        """Files of 100 conversations."""
        draw = random.Random(1)
        sums = write_records(self.folder / "heldout.jsonl", [sum_record(n, draw) for n in range(60)])
        return [str(self.conversations / "heldout"), sums]

    @cached_property
    def run(self) -> Path:
        """The run of `fine_tune` by the first tree."""
        return self.fine_tune(self.tree, self.folder / "run")

    @property
    def policy(self) -> Path:
        """A checkpoint that earns some rewards."""
        return self.checkpoint(self.run, STEPS // 2)

    @property
    def model(self) -> Path:
        """A checkpoint that answers most sums; the teacher of distillation."""
        return self.checkpoint(self.run, STEPS)

    def checkpoint(self, run: Path, step: int) -> Path:
        """Returns the folder of a checkpoint."""
        return run / "checkpoints" / f"step-{step:08d}"

    def fine_tune(self, tree: Tree, output: Path) -> Path:
        """Has a tree train on the conversations, from random weights, and returns the folder of the run."""
        draw = random.Random(0)
        records = [sum_record(number, draw) for number in range(4000)]
        sums, tools = (write_records(self.folder / f"train-{n}.jsonl", records[n::2]) for n in (0, 1))
        data = [f"data.reasoning=[{sums}]", f"data.agent=[{self.conversations / 'train'},{tools}]"]
        tree.run("arcforge-train", *SETTINGS, *data, f"data.cache_dir={output}/cache", f"output_dir={output}")
        return output / "latest"
