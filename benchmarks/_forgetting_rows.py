"""The stages and the rows of ``benchmarks/forgetting.py``: how a skill is lost, and ways to bring it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OLD = "expressions"
"""The skill of the first stage: two-step expressions, with reasoning."""
NONE = ("math", "science", "code", "tool_math")
"""Parts that a mixture has unless they are left out."""


@dataclass(frozen=True)
class Kind:
    """A stage that costs the first one's skill.

    Attributes:
        title: in the table.
        environment: has the tasks of the new skill; the oracle's replies are what it is fine-tuned on.
        options: of that environment, as a mapping of an override.
        tokens: of a reply at most.
        rl: whether reinforcement learning follows the fine-tuning.
    """

    title: str
    environment: str
    options: str = "{}"
    tokens: int = 64
    rl: bool = False


KINDS = {
    "chat": Kind("SFT on notices", "notices"),
    "tools": Kind("SFT on function calls", "function_calls", tokens=96),
    "general": Kind("SFT, then RL, on safety and facts", "general", "{parts: {safety: 1, facts: 1}}", rl=True),
}

ROWS: Mapping[str, str] = {
    "distill": "distillation from both stages",
    "replay": "SFT replay: right samples of the first stage, and the new stage's data",
    "rl_kl": "RL on the old skill, KL to the new stage",
    "rl_both": "RL on both",
    "average": "mean of both stages' weights",
}
"""Ways to bring the skill back, by name, with their titles."""


@dataclass(frozen=True)
class Steps:
    """Steps, sizes and rates of all stages.

    Attributes:
        reasoning, sft, rl: steps of the first stage, of the new stage's fine-tuning, of its reinforcement learning.
        distill, replay, rl_kl, rl_both: of the rows, chosen so that all take about as long.
        groups, group_size: of a step of reinforcement learning; one of distillation has as many rollouts.
        lr, sft_lr, replay_lr, distill_lr: learning rates.
        kl: weight of the KL of `rl_kl`.
        top_k: tokens of a teacher's distribution that `distill` compares in each place; 0: the sampled one.
        demonstrations: of the new skill.
        samples: tasks of the old skill that the first stage answers for `replay`.
        tasks: held-out ones of each skill.
    """

    reasoning: int
    sft: int
    rl: int
    distill: int
    replay: int
    rl_kl: int
    rl_both: int
    groups: int
    group_size: int
    lr: float
    sft_lr: float
    replay_lr: float
    distill_lr: float
    kl: float
    top_k: int
    demonstrations: int
    samples: int
    tasks: int


def mixture(kind: Kind, prefix: str, old: bool = True) -> list[str]:
    """Returns the overrides of a mixture of both skills in equal parts, each in its own mode, or of the new one alone.

    Args:
        kind: has the new skill.
        prefix: of the fields, e.g. ``environment``.
        old: whether the old skill has a part.
    """
    parts = {"new": {"environments": kind.environment, "options": kind.options}}
    if old:
        parts[OLD] = {"environments": "math", "options": "{kinds: [expressions]}", "thinking": "on"}
    return [
        *(f"{prefix}.parts.{name}=0" for name in NONE),
        *(f"+{prefix}.parts.{name}=1" for name in parts),
        *(f"+{prefix}.{field}.{name}={value}" for name, of in parts.items() for field, value in of.items()),
    ]


def demonstrations(steps: Steps, kind: Kind, folder: Path) -> list[str]:
    """Returns the command that writes the oracle's replies to tasks of the new skill."""
    return [
        "env", "environment=mixture", *mixture(kind, "environment", old=False), "agent=oracle", "records=true",
        f"episodes={steps.demonstrations}", f"output_dir={folder}",
    ]  # fmt: skip


def tuning(steps: int, lr: float, init: Path, folders: list[Path], seed: int, folder: Path) -> list[str]:
    """Returns the command of a fine-tuning on records."""
    return [
        "train", "stage=sft", f"init={init}", f"folder={folder}", f"seed={seed}", "data=conversations",
        f"data.folders=[{','.join(map(str, folders))}]", "data.filters=[]", "data.max_tokens=513",
        "trainer.sequence_length=512", "trainer.micro_batch_tokens=2048", f"optimizer.lr={lr}", "schedule=cosine",
        "schedule.warmup=0.05", "schedule.final=0.1", f"trainer.max_steps={steps}", "trainer.samples=0",
        f"trainer.eval_every={steps}",
    ]  # fmt: skip


def learning(steps: Steps, count: int, init: str, tokens: int, seed: int, folder: Path) -> list[str]:
    """Returns the part that all commands of reinforcement learning share."""
    return [
        "rl", f"init={init}", f"folder={folder}", f"seed={seed}", f"rollout.groups={steps.groups}",
        f"rollout.group_size={steps.group_size}", f"rollout.max_new_tokens={tokens}", "rollout.refills=0",
        f"optimizer.lr={steps.lr}", "schedule=cosine", "schedule.warmup=0.1", "schedule.final=0.1",
        f"trainer.max_steps={count}", "evaluation.tasks=0", "engine=paged", "engine.max_running=512",
    ]  # fmt: skip


ON_OLD = ("environment=math", "environment.kinds=[expressions]", "rollout.thinking=on")
"""Overrides of reinforcement learning on the old skill alone."""


def distillation(steps: Steps, kind: Kind, old: Path, new: Path, seed: int, folder: Path) -> list[str]:
    """Returns the command of the distillation from both stages into the new one."""
    groups = steps.groups * steps.group_size
    return [
        *learning(steps, steps.distill, str(new), max(80, kind.tokens), seed, folder), "algorithm=opd",
        "environment=mixture", *mixture(kind, "environment"), f"+teachers.{OLD}={old}", f"+teachers.new={new}",
        f"rollout.groups={groups}", "rollout.group_size=1", f"optimizer.lr={steps.distill_lr}",
        "algorithm.balance=teachers", f"algorithm.top_k={steps.top_k}",
    ]  # fmt: skip


def sampling(steps: Steps, old: Path, folder: Path) -> list[str]:
    """Returns the command that keeps right answers of the first stage."""
    return [
        "sample", f"checkpoint={old}", "environment=math", "environment.kinds=[expressions]", "thinking=on",
        f"tasks={steps.samples}", "samples=1", "max_new_tokens=80", f"output_dir={folder}",
    ]  # fmt: skip


def evaluation(kind: Kind, checkpoint: Path, tasks: int, folder: Path) -> list[str]:
    """Returns the command that tries held-out tasks of both skills once each, at temperature 1."""
    return [
        "env", "environment=mixture", *mixture(kind, "environment"), "environment.split=heldout",
        f"checkpoint={checkpoint}",
        "engine=paged", f"episodes={2 * tasks}", f"max_new_tokens={max(80, kind.tokens)}", f"output_dir={folder}",
    ]  # fmt: skip
