"""Texts and histograms for TensorBoard, written with each evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch import Tensor

from arcforge_rl.rollouts.collect import Rollout

MOST_TEXT = 4000
STREAMS = ("advantages", "factor")


def log_samples(logger: Logger, step: int, tries: Sequence[Rollout], rollouts: Sequence[Rollout]) -> None:
    """Writes the tries at a held-out task in words, and what a step's rollouts and tokens are spread over.

    Args:
        logger: nothing is written where it is not TensorBoard's.
        step: of the run.
        tries: at one task.
        rollouts: of the step; none before the first.
    """
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_text("heldout/first_task", as_text(tries), step)
        for name, values in histograms(rollouts).items():
            logger.experiment.add_histogram(name, values, step)


def as_text(tries: Sequence[Rollout]) -> str:
    """Returns a task and the tries at it as Markdown; all words are indented, so that none is read as markup."""
    task = tries[0].task
    parts = ["task", _block(task.prompt), "answer", _block(str(task.answer))]
    for rollout in tries:
        parts += [f"reward {rollout.outcome.reward:.2f}", _block(rollout.episode.reply.text)]
        parts += (
            [_block(f"reason: {rollout.outcome.reasons['reward']}")] if rollout.outcome.reasons.get("reward") else []
        )
    return "\n\n".join(parts)


def histograms(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    """Returns log-probs, advantages and factors of sampled tokens, lengths and rewards of rollouts, by name."""
    found: dict[str, list[Tensor]] = {}
    for rollout in rollouts:
        found.setdefault("rollouts/length", []).append(torch.tensor([float(rollout.trace.num_sampled)]))
        found.setdefault("rollouts/reward", []).append(torch.tensor([rollout.outcome.reward]))
        for branch in rollout.trace.branches:
            found.setdefault("tokens/logprob", []).append(torch.tensor(branch.logprobs)[branch.index_T])
            for name in STREAMS:
                if name in branch.streams:
                    found.setdefault(f"tokens/{name}", []).append(branch.streams[name][branch.index_T])
    joined = {name: torch.cat(parts) for name, parts in found.items()}
    return {name: values for name, values in joined.items() if values.numel()}


def _block(text: str) -> str:
    return "\n".join("    " + line for line in text[:MOST_TEXT].splitlines() or [""])
