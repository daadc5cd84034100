"""The stages and the rows of ``benchmarks/forgetting.py``: how skills are lost, and ways to bring them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OLD, SHORT, NEW = "expressions", "sums", "new"
"""Skills: two-step expressions with reasoning, learnt in the first stage; sums answered by a number, which a kind may
teach after it; that of the stage that costs them."""
NONE = ("math", "science", "code", "tool_math")
"""Parts that a mixture has unless they are left out."""


@dataclass(frozen=True)
class Skill:
    """A part of a mixture.

    Attributes:
        environment: has its tasks.
        options: of that environment, as a mapping of an override.
        thinking: mode of its replies; empty for that of the command.
    """

    environment: str
    options: str = "{}"
    thinking: str = ""

    def fields(self) -> dict[str, str]:
        """Returns the fields of a mixture that have the part, with its values."""
        thinking = {"thinking": self.thinking} if self.thinking else {}
        return {"environments": self.environment, "options": self.options} | thinking


OLD_SKILLS = {OLD: Skill("math", "{kinds: [expressions]}", "on"), SHORT: Skill("arithmetic")}
ROWS: Mapping[str, str] = {
    "distill": "distillation from all stages",
    "tokens": "distillation from all stages, averaged over tokens",
    "replay": "SFT replay: right samples of the first stage, and the new stage's data",
    "rl_kl": "RL on the old skill, KL to the new stage",
    "rl_both": "RL on both",
    "average": "mean of both stages' weights",
}
"""Ways to bring the skills back, by name, with their titles."""


@dataclass(frozen=True)
class Kind:
    """Stages that teach skills, and one that costs them.

    Attributes:
        title: in the table.
        environment: has the tasks of the new skill; the oracle's replies are what it is fine-tuned on.
        options: of that environment, as a mapping of an override.
        tokens: of a reply at most.
        rl: whether reinforcement learning follows the fine-tuning.
        old: the skills that were learnt before, in order, each with a checkpoint of its own.
        rows: of `ROWS`.
    """

    title: str
    environment: str
    options: str = "{}"
    tokens: int = 64
    rl: bool = False
    old: tuple[str, ...] = (OLD,)
    rows: tuple[str, ...] = ("distill", "replay", "rl_kl", "rl_both", "average")

    @property
    def skills(self) -> dict[str, Skill]:
        """All skills by name, the new one last."""
        return {name: OLD_SKILLS[name] for name in self.old} | {NEW: Skill(self.environment, self.options)}


KINDS = {
    "chat": Kind("SFT on notices", "notices"),
    "tools": Kind("SFT on function calls", "function_calls", tokens=96),
    "general": Kind("SFT, then RL, on safety and facts", "general", "{parts: {safety: 1, facts: 1}}", rl=True),
    "lengths": Kind("SFT on sums, then on notices", "notices", old=(OLD, SHORT), rows=("distill", "tokens")),
}


@dataclass(frozen=True)
class Steps:
    """Steps, sizes and rates of all stages.

    Attributes:
        reasoning, sft, rl: steps of the first stage, of the later ones' fine-tuning, of the new one's reinforcement
            learning.
        distill, replay, rl_kl, rl_both: of the rows (`tokens` as `distill`), chosen so that all take about as long.
        groups, group_size: of a step of reinforcement learning; one of distillation has as many rollouts.
        lr, sft_lr, replay_lr, distill_lr: learning rates.
        kl: weight of the KL of `rl_kl`.
        top_k: tokens of a teacher's distribution that `distill` compares in each place; 0: the sampled one.
        demonstrations: of the new skill, and three times as many of sums.
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


def mixture(kind: Kind, names: Sequence[str] = ()) -> list[str]:
    """Returns the overrides of a mixture of skills in equal parts, each in its own mode.

    Args:
        kind: has the skills.
        names: of the parts; none for all of them.
    """
    parts = {name: kind.skills[name].fields() for name in names or kind.skills}
    return [
        "environment=mixture",
        *(f"environment.parts.{name}=0" for name in NONE),
        *(f"+environment.parts.{name}=1" for name in parts),
        *(f"+environment.{field}.{name}={value}" for name, of in parts.items() for field, value in of.items()),
    ]


def demonstrations(steps: Steps, kind: Kind, skill: str, folder: Path) -> list[str]:
    """Returns the command that writes the oracle's replies to tasks of a skill."""
    count = steps.demonstrations * (3 if skill == SHORT else 1)
    return [
        "env", *mixture(kind, [skill]), "agent=oracle", "records=true", f"episodes={count}", f"output_dir={folder}",
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


HOPELESS = "monitor.idle_steps=0"
"""A skill that is lost wholly earns nothing to learn from: a result, which ends no row early."""
ON_OLD = ("environment=math", "environment.kinds=[expressions]", "rollout.thinking=on")
"""Overrides of reinforcement learning on the old skill alone."""


BALANCES = {
    "distill": ("algorithm.balance=teachers",),
    "tokens": ("algorithm.balance=prompts", "algorithm.mean=token"),
}
"""Rows of distillation: teachers have the same weight together, or tokens have, whose ever they are."""


def distillation(
    steps: Steps, kind: Kind, row: str, teachers: Mapping[str, Path], seed: int, folder: Path
) -> list[str]:
    """Returns the command of the distillation from all stages into the new one.

    Args:
        steps: of the recipe.
        kind: has the prompts.
        row: of `BALANCES`.
        teachers: by skill.
        seed: of the run.
        folder: of the run.
    """
    groups = steps.groups * steps.group_size
    return [
        *learning(steps, steps.distill, str(teachers[NEW]), max(80, kind.tokens), seed, folder), "algorithm=opd",
        *mixture(kind), *(f"+teachers.{name}={path}" for name, path in teachers.items()),
        f"rollout.groups={groups}", "rollout.group_size=1", f"optimizer.lr={steps.distill_lr}", *BALANCES[row],
        f"algorithm.top_k={steps.top_k}",
    ]  # fmt: skip


def sampling(steps: Steps, old: Path, folder: Path) -> list[str]:
    """Returns the command that keeps right answers of the first stage."""
    return [
        "sample", f"checkpoint={old}", "environment=math", "environment.kinds=[expressions]", "thinking=on",
        f"tasks={steps.samples}", "samples=1", "max_new_tokens=80", f"output_dir={folder}",
    ]  # fmt: skip


def evaluation(kind: Kind, checkpoint: Path | str, tasks: int, folder: Path) -> list[str]:
    """Returns the command that tries held-out tasks of all skills once each, at temperature 1."""
    return [
        "env", *mixture(kind), "environment.split=heldout", f"checkpoint={checkpoint}", "engine=paged",
        f"episodes={len(kind.skills) * tasks}", f"max_new_tokens={max(80, kind.tokens)}", f"output_dir={folder}",
    ]  # fmt: skip
