"""Reinforcement learning: a tiny run of every algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from compare.policy import Case, Inputs
from compare.trees import Tree
from compare.values import read_cells, read_lines, weights

SETTINGS = (
    "engine=simple",
    "correction=own",
    "optimizer=torch_adamw",
    "optimizer.lr=0.003",
    "hardware=torch_cpu",
    "rollout.groups=6",
    "rollout.group_size=6",
    "rollout.max_new_tokens=6",
    "evaluation.tasks=8",
    "evaluation.samples=2",
    "trainer.eval_every=2",
    "trainer.threads=1",
    "trainer.precision=fp32",
    "trainer.micro_batch_tokens=512",
    "seed=0",
)
SUMS = ("environment=arithmetic", "environment.digits=1")
CASES: dict[str, tuple[str, ...]] = {
    "cispo": (),
    "dapo": (),
    "double_sided": (),
    "grpo": ("algorithm.kl=0.1",),
    "gspo": (),
    "icepop": (),
    "opd": ("rollout.drop_equal=false",),
    "ppo": (),
    "reinforce_pp": ("algorithm.reward_kl=0.05",),
    "rloo": (),
    "opd, tools": (
        *("algorithm=opd", "environment=tool_math", "environment.tools=[calculator]"),
        *("rollout.drop_equal=false", "rollout.max_new_tokens=32"),
    ),
    "icepop, paged engine": ("algorithm=icepop", "engine=paged", "engine.overlap=false"),
    "grpo, two updates": (
        *("algorithm=grpo", "trainer.updates=2"),
        *("curriculum.pool=12", "trainer.replay_routing=trainer"),
    ),
}
"""Name, which is that of an algorithm unless the overrides name one -> overrides."""


def rl(inputs: Inputs, tree: Tree, folder: Path) -> Iterator[Case]:
    """A run from the first tree's policy in each case."""
    for number, name in enumerate(CASES):
        yield name, partial(learn, inputs, tree, name, folder / f"{number}")


def learn(inputs: Inputs, tree: Tree, name: str, output: Path) -> dict[str, Any]:
    """Returns metrics, evaluations, rollouts and final weights of a run."""
    more = CASES[name]
    begin = [f"init={inputs.policy}", f"trainer.max_steps={inputs.steps or 3}"]
    algorithm = [] if any(override.startswith("algorithm=") for override in more) else [f"algorithm={name}"]
    environment = [] if any(override.startswith("environment=") for override in more) else SUMS
    teacher = [f"+teachers.default={inputs.model}"] if name.startswith("opd") else []
    settings = [*begin, *SETTINGS, *algorithm, *environment, *more, *teacher, *inputs.overrides]
    tree.run("arcforge-rl", *settings, f"output_dir={output}")
    run = output / "latest"
    last = sorted(run.glob("checkpoints/step-*"))[-1]
    fields = ("step", "task", "messages", "answer", "rewards", "length", "truncated", "learnt", "tokens")
    return {
        "metrics": read_cells(run / "metrics.csv"),
        "evaluations": read_cells(run / "evaluations.csv"),
        "rollouts": read_lines(run / "rollouts.jsonl", *fields),
        "weights": weights(last),
    }
