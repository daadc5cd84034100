"""How a run gets its rollouts: a step at a time, or while it trains; torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from arcforge_core.config.schema import CollectionConfig, check_between, check_choice, check_minimums
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.entries import entry_of

STALE = ("drop", "retry", "keep")
"""Treatments of a rollout beyond the bound on staleness."""
PUSHES = ("in_flight", "pause")
ORCHESTRATORS = ("thread", "process")


@dataclass
class ServiceConfig:
    """A task service: tasks with their own rollout and reward logic. One of `environment`, `command` and `url`."""

    environment: str | None = None
    """An environment, played in this process."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of that environment's config, e.g. ``+collection.services.sums.options.digits=1``."""
    command: list[str] = field(default_factory=list)
    """A program that plays in a process of its own, e.g. ``[arcforge-env,serve]``; started again when
    it ends."""
    url: str | None = None
    """A service that plays over HTTP, e.g. of ``arcforge-env serve port=8801``."""
    ratio: float = 1.0
    """Share of the groups, relative to those of the other services."""
    concurrency: int | None = None
    """Its rollouts that run at a time; null: as many as there are in all."""
    per_minute: float | None = None
    """Its rollouts that start in a minute at most; null: any number."""
    seconds: float = 3600.0
    """Time after which a rollout that has not ended, or a verdict that has not come, is a failure of the worker."""
    slots: int = 1
    """Slots of `collection.concurrency` that a rollout takes: sequences that it samples at a time."""
    sandbox_mb: int = 0
    """Memory of a rollout's sandboxes in MiB, counted against `collection.sandbox_mb`."""

    def check(self, field: str) -> None:
        """Checks the fields; `field` is where they were given."""
        named = [name for name in ("environment", "command", "url") if getattr(self, name)]
        if len(named) != 1:
            raise ConfigError(field, named, "must name one of environment, command and url")
        if self.options and not self.environment:
            raise ConfigError(f"{field}.options", self.options, f"are of an environment; {named[0]} takes none here")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"{field}.url", self.url, "must begin with http:// or https://")
        for name in ("ratio", "seconds", "per_minute"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{field}.{name}", value, "must be finite and above 0")
        check_minimums(self, field, concurrency=1, slots=1, sandbox_mb=0)


def service_of(fields: Any, where: str) -> ServiceConfig:
    """Returns a service of its fields; `where` is where they were given.

    Raises:
        ConfigError: there is no such field, or its value has another type.
    """
    return entry_of(ServiceConfig, fields, where, "a service")


@dataclass
class SynchronousConfig(CollectionConfig):
    """A step samples, scores and trains in turn; every rollout has the weights that are trained on it."""

    name: str = "sync"


@dataclass
class AsynchronousConfig(CollectionConfig):
    """Rollouts and training at the same time. Staleness is the number of steps between the weights that sampled a token
    and the weights that are trained on it. A resumed run may change all of these fields."""

    name: str = "asynchronous"
    orchestrator: str = "thread"
    """Where rollouts are scheduled, played and recorded: in a ``thread`` of the trainer, or in a ``process`` that the
    trainer starts and watches, which needs an engine at a URL."""
    heartbeat_seconds: float = 1.0
    """Interval at which trainer and orchestrator hear of each other, and the engine's server and task services in other
    processes are asked whether they are there."""
    dead_seconds: float = 30.0
    """A process that has not answered for this long is dead. An orchestrator or the program of a service is killed and
    started again; rollouts of a dead engine or service wait, which counts as no failure; an orchestrator whose trainer
    is dead ends. The run ends when an engine or a service has been dead for ten times as long."""
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
    """Rollouts that run at a time, at most `engine.max_waiting`; null: as many as `engine.max_running` sequences."""
    adaptive: bool = False
    """Let fewer run as the engine's cache fills: the number begins with one group, grows while under 60% of the pages
    are in use, and shrinks above 80% or when the engine preempts; above 90% the youngest start again later."""
    status_port: int | None = None
    """Port of the status page on the loopback address, 0 for a free one; null: no page."""
    retries: int = 2
    """How often a rollout that the infrastructure failed, or that ``stale=retry`` cancelled, is started again."""
    oversample: float = 1.0
    """Admit this multiple of the groups; when a step is complete, all other rollouts are aborted."""
    whole_batches: bool = False
    """Start rollouts a step at a time, when none runs any more; with ``eta=1`` the trainer works on the step before
    meanwhile (one step off)."""
    allow_uncorrected: bool = False
    """Allow an algorithm without a correction to train on stale rollouts."""
    services: dict[str, Any] = field(default_factory=dict, metadata={"values": ServiceConfig})
    """Task services by name, e.g. ``+collection.services.sums.environment=arithmetic``: training rollouts are theirs,
    and `environment` has the held-out tasks. Empty: the environment is the only service."""
    adjust: float = 1.0
    """How far the ratios of services follow their progress: a service of whose groups more teach than of the others'
    gets more, up to this factor, and one of whose fewer do less, down to its inverse. 1: the ratios stay."""
    sandbox_mb: int | None = None
    """Memory in MiB for the sandboxes of all rollouts that run; null: no limit."""

    def __post_init__(self) -> None:
        check_minimums(self, "collection", threshold=1, push_every=1, eta=0.0, max_staleness=0, concurrency=1)
        check_minimums(self, "collection", retries=0, oversample=1.0)
        check_choice("collection.push", self.push, PUSHES)
        check_choice("collection.stale", self.stale, STALE)
        check_choice("collection.orchestrator", self.orchestrator, ORCHESTRATORS)
        check_between("collection.heartbeat_seconds", self.heartbeat_seconds, 0.05, 3600.0)
        check_between("collection.dead_seconds", self.dead_seconds, self.heartbeat_seconds, 86400.0)
        check_minimums(self, "collection", adjust=1.0, sandbox_mb=1)
        if self.status_port is not None:
            check_between("collection.status_port", self.status_port, 0, 65535)
        self._check_services()
        if self.stale != "keep" and self.push_every > self.max_staleness + 1:
            accepted = f"must be at most {self.max_staleness + 1}, collection.max_staleness + 1"
            raise ConfigError("collection.push_every", self.push_every, accepted)

    def _check_services(self) -> None:
        """Refuses services that cannot be, and two that are one."""
        origins: dict[str, str] = {}
        for name, fields in self.services.items():
            where = f"collection.services.{name}"
            if not str(name).isidentifier():
                raise ConfigError("collection.services", name, "a name has letters, digits and underscores")
            service = self.services[name] = service_of(fields, where)
            service.check(where)
            origin = service.url or repr((service.environment, service.options, service.command))
            if origin in origins:
                accepted = f"is collection.services.{origins[origin]} registered twice: name it once, with its ratio"
                raise ConfigError(where, service.url or service.environment or service.command, accepted)
            origins[origin] = name
            if self.sandbox_mb is not None and service.sandbox_mb > self.sandbox_mb:
                accepted = f"must be at most collection.sandbox_mb={self.sandbox_mb}: no rollout could start"
                raise ConfigError(f"{where}.sandbox_mb", service.sandbox_mb, accepted)

    @property
    def can_be_stale(self) -> bool:
        """Whether a rollout may be trained on by other weights than those that sampled it."""
        ahead = self.eta > 0 or self.oversample > 1.0  # over-sampling admits groups of the next step before the update
        return self.push_every > 1 or (ahead and (self.max_staleness > 0 or self.stale == "keep"))
