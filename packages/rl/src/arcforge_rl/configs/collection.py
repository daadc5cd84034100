"""How a run gets its rollouts: a step at a time, or while it trains; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.config.schema import CollectionConfig, check_choice, check_minimums
from arcforge_core.errors import ConfigError

STALE = ("drop", "retry", "keep")
"""Treatments of a rollout beyond the bound on staleness."""
PUSHES = ("in_flight", "pause")


@dataclass
class SynchronousConfig(CollectionConfig):
    """A step samples, scores and trains in turn; every rollout has the weights that are trained on it."""

    name: str = "sync"


@dataclass
class AsynchronousConfig(CollectionConfig):
    """Rollouts and training at the same time. Staleness is the number of steps between the weights that sampled a token
    and the weights that are trained on it. A resumed run may change all of these fields."""

    name: str = "asynchronous"
    threshold: int | None = None
    """Finished groups that make a step; null: `rollout.groups`."""
    push_every: int = 1
    """Steps from one hand-over of the weights to the next."""
    push: str = "in_flight"
    """``in_flight``: replies that are being sampled continue with the new weights; ``pause``: they end first, so that
    each has the weights of one step."""
    reset_optimizer: bool = True
    """Forget the optimizer's state at each hand-over (GLM-5, 4.1)."""
    eta: float = 2.0
    """Bound of the mean staleness, by admission: at any time at most (eta + steps trained + 1) x threshold groups have
    been admitted, dropped ones not counted. 0 is the synchronous loop."""
    max_staleness: int = 8
    """Bound of the staleness of a rollout's oldest token when it is trained on, waiting included."""
    stale: str = "drop"
    """Rollouts beyond the bound: ``drop``, ``retry`` (start again), or ``keep`` (train on them and count them). Those
    that run are cancelled as soon as they cannot be in time, except with ``keep``."""
    concurrency: int | None = None
    """Rollouts that run at a time; null: as many as `engine.max_running` sequences."""
    retries: int = 2
    """How often a rollout that the infrastructure failed, or that ``stale=retry`` cancelled, is started again."""
    oversample: float = 1.0
    """Admit this multiple of the groups; when a step is complete, all other rollouts are aborted."""
    allow_uncorrected: bool = False
    """Allow an algorithm without a correction to train on stale rollouts."""

    def __post_init__(self) -> None:
        check_minimums(self, "collection", threshold=1, push_every=1, eta=0.0, max_staleness=0, concurrency=1)
        check_minimums(self, "collection", retries=0, oversample=1.0)
        check_choice("collection.push", self.push, PUSHES)
        check_choice("collection.stale", self.stale, STALE)
        if self.stale != "keep" and self.push_every > self.max_staleness + 1:
            accepted = f"must be at most {self.max_staleness + 1}, collection.max_staleness + 1"
            raise ConfigError("collection.push_every", self.push_every, accepted)

    @property
    def can_be_stale(self) -> bool:
        """Whether a rollout may be trained on by other weights than those that sampled it."""
        return self.push_every > 1 or (self.eta > 0 and (self.max_staleness > 0 or self.stale == "keep"))
