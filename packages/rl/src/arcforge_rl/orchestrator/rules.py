"""The rules of a scheduler, as plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """When groups are admitted, how old they may become, and how often a rollout is tried.

    A step is one batch of `threshold` groups and one optimizer update (or the updates of one batch). Staleness is the
    number of steps between the weights that sampled a token and the weights that are trained on it.

    Attributes:
        threshold: groups of a batch.
        group_size: rollouts of a group.
        eta: bound of the mean staleness, by admission: at any time at most ``(eta + steps trained + 1) * threshold``
            groups have been admitted and not dropped. 0 is the synchronous loop.
        max_staleness: bound of the staleness of a rollout's oldest token at the time of training.
        stale: ``drop``, ``retry`` or ``keep`` rollouts beyond the bound; the first two cancel a running rollout as soon
            as it cannot be trained in time.
        concurrency: rollouts that run at a time.
        retries: how often a failed rollout, or one beyond the bound, is started again.
        oversample: admits this multiple of the batch; when a batch is complete, all other rollouts are aborted.
        whole_batches: admits a batch of groups at a time, and only when none is running; with ``eta=1`` this is the
            one-step-off loop.
        refills: how often a group that was judged to teach nothing is replaced, its replacements included; then its
            batch has a group fewer. None: without limit.
    """

    threshold: int
    group_size: int
    eta: float = 2.0
    max_staleness: int = 8
    stale: str = "drop"
    concurrency: int = 64
    retries: int = 2
    oversample: float = 1.0
    whole_batches: bool = False
    refills: int | None = None

    def admitted(self, trained: int) -> int:
        """Returns the largest number of groups that may have been admitted and not dropped after `trained` steps."""
        return math.floor((self.eta + trained + self.oversample) * self.threshold)
