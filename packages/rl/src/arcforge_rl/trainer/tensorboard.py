"""Texts and histograms for TensorBoard, written with each evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch import Tensor

from arcforge_rl.rollouts.collect import TracedRollout

MOST_TEXT = 4000
STREAMS = ("advantages", "factor")


def log_samples(
    loggers: Sequence[Logger], step: int, tries: Sequence[TracedRollout], rollouts: Sequence[TracedRollout]
) -> None:
    """Writes the rollouts of a held-out task as text, and histograms of a step's rollouts and tokens.

    Args:
        loggers: loggers of the run; only TensorBoard's is used.
        step: step of the run.
        tries: rollouts of one task.
        rollouts: rollouts of the step; empty before the first.
    """
    for logger in loggers:
        if not isinstance(logger, TensorBoardLogger):
            continue
        logger.experiment.add_text("heldout/first_task", as_text(tries), step)
        for name, values in histograms(rollouts).items():
            logger.experiment.add_histogram(name, values, step)


def as_text(tries: Sequence[TracedRollout]) -> str:
    """Returns a task and its rollouts as Markdown; model text is indented, so that it is not parsed as markup."""
    task = tries[0].task
    parts = ["task", _block(task.prompt), "answer", _block(str(task.answer))]
    for rollout in tries:
        failure = rollout.outcome.failure
        head = f"reward {rollout.outcome.reward:.2f}" if failure is None else f"failed ({failure.kind})"
        parts += [head, _block(rollout.episode.reply.text)]
        parts += (
            [_block(f"reason: {rollout.outcome.reasons['reward']}")] if rollout.outcome.reasons.get("reward") else []
        )
    return "\n\n".join(parts)


def histograms(rollouts: Sequence[TracedRollout]) -> dict[str, Tensor]:
    """Returns log-probs, advantages and factors of sampled tokens, lengths and rewards of rollouts, by name."""
    found: dict[str, list[Tensor]] = {}
    for rollout in rollouts:
        if rollout.outcome.failure is not None:
            continue
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
