"""The stages of benchmarks of rewards: data, fine-tuning, a reward model, and a policy's run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import _notices as notices
from _stages import write_lines

TUNING, EXPERTS, PAIRS = "tuning.jsonl", "experts.jsonl", "{taste}.jsonl"


@dataclass(frozen=True)
class Sizes:
    """Steps, sizes and the policy's rate.

    Attributes:
        init: checkpoint that is fine-tuned.
        tuning_steps, scorer_steps, steps: of the fine-tuning, of a reward model, of a run.
        groups, group_size: of a step.
        lr: learning rate of the policy.
        tasks: held-out ones.
        eval_every: steps.
        notices, pairs, experts: conversations of the fine-tuning, pairs of a taste, experts' replies.
    """

    init: str
    tuning_steps: int
    scorer_steps: int
    steps: int
    groups: int
    group_size: int
    lr: float
    tasks: int
    eval_every: int
    notices: int
    pairs: int
    experts: int


def write_data(
    sizes: Sizes,
    folder: Path,
    writer: Callable[[random.Random, notices.Notice], str],
    tastes: Sequence[str],
    seed: int = 0,
    noise: float = 0.0,
) -> None:
    """Writes conversations of the fine-tuning, experts' replies and labelled pairs, all of training tasks, once.

    Args:
        sizes: of the files.
        folder: is made; one that is complete stays as it is.
        writer: of the conversations.
        tastes: each has a file of pairs.
        seed: of everything that is drawn.
        noise: share of labels that are the wrong way round.
    """
    note = folder / "done.json"
    if note.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    draw, tasks = random.Random(seed), notices.tasks(sizes.notices)
    chats = [
        {"messages": [{"role": "user", "content": task.prompt}, {"role": "assistant", "content": writer(draw, task)}]}
        for task in tasks
    ]
    experts = [{"prompt": one.prompt, "reply": notices.expert(draw, one)} for one in tasks[: sizes.experts]]
    write_lines(folder / TUNING, chats)
    write_lines(folder / EXPERTS, experts)
    for taste in tastes:
        found = notices.pairs(taste, notices.tasks(sizes.pairs), seed, noise)
        write_lines(folder / PAIRS.format(taste=taste), found)
    note.write_text(json.dumps({"wall": 0.0}))


def chats(data: Path) -> str:
    """Returns the override that names the conversations of `write_data`."""
    return f"data.chat=[{data / TUNING}]"


def tuning_command(sizes: Sizes, data: str, seed: int, folder: Path, longest: int = 128) -> list[str]:
    """Returns the command of the fine-tuning.

    Args:
        sizes: steps.
        data: override that names the conversations.
        seed: of the run.
        folder: of the run.
        longest: tokens of a conversation at most.
    """
    return [
        "train", "stage=sft", f"init={sizes.init}", f"folder={folder}", f"seed={seed}", "data=conversations",
        data, "data.filters=[]", f"data.max_tokens={longest + 1}", f"trainer.sequence_length={longest}",
        "trainer.micro_batch_tokens=2048", "optimizer.lr=4e-3", "schedule=cosine", "schedule.warmup=0.05",
        "schedule.final=0.1", f"trainer.max_steps={sizes.tuning_steps}", "trainer.samples=0",
        f"trainer.eval_every={sizes.tuning_steps}",
    ]  # fmt: skip


def scorer_command(sizes: Sizes, data: Path, base: Path, taste: str, seed: int, folder: Path) -> list[str]:
    """Returns the command of a reward model's training."""
    return [
        "train", "stage=reward", f"init={base}", f"folder={folder}", f"seed={seed}",
        f"pairs.files=[{data / PAIRS.format(taste=taste)}]", "optimizer.lr=1e-3", "trainer.batch=32",
        f"trainer.max_steps={sizes.scorer_steps}", f"trainer.eval_every={sizes.scorer_steps}",
    ]  # fmt: skip


def policy_command(
    sizes: Sizes, base: Path, rewards: Path, seed: int, folder: Path, environment: str = "notices", tokens: int = 64
) -> list[str]:
    """Returns the part that all runs of the policy share; a reply has at most `tokens`."""
    return [
        "rl", f"init={base}", f"folder={folder}", f"seed={seed}", f"environment={environment}", f"rewards={rewards}",
        f"rollout.groups={sizes.groups}", f"rollout.group_size={sizes.group_size}", f"rollout.max_new_tokens={tokens}",
        f"evaluation.tasks={sizes.tasks}", "evaluation.samples=1", f"trainer.eval_every={sizes.eval_every}",
        f"trainer.max_steps={sizes.steps}", f"optimizer.lr={sizes.lr}",
    ]  # fmt: skip
