"""Which processes a run starts, and where they run; torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from arcforge_core.config.schema import ComponentConfig, check_choice, check_minimums, check_text
from arcforge_core.errors import ConfigError

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
"""Of a placement group of Ray."""


@dataclass
class LauncherConfig(ComponentConfig):
    """Base of the ways in which the processes of a reinforcement learning run are started."""


@dataclass
class NoLauncherConfig(LauncherConfig):
    """The command is the trainer; a server that it needs is started by hand."""

    name: str = "none"


@dataclass
class SupervisedLauncherConfig(LauncherConfig):
    """Base of launchers that supervise an engine's server, an orchestrator and a trainer."""

    engines: int = 1
    """Engines of the server (its `dp`); a router before several shares the sessions among them."""
    serve: list[str] = field(default_factory=list)
    """Options of ``arcforge-serve``, e.g. ``launcher.serve=[engine.cache_mb=2048,router.policy=prefix]``; they replace
    those that the launcher derives from the run."""
    start_seconds: float = 300.0
    """Time in which the server must answer after its start, and an orchestrator must have begun."""
    hang_seconds: float = 60.0
    """A server that has not answered for this long is killed and started again."""
    restarts: int = 3
    """How often a process that ended by itself is started again, in a row; then the run ends. A life of ten minutes
    begins a new count."""
    stop_seconds: float = 30.0
    """Time after Ctrl-C in which the trainer may end its step and save itself; then it is killed."""

    def __post_init__(self) -> None:
        check_minimums(self, "launcher", engines=1, restarts=0)
        for name in ("start_seconds", "hang_seconds", "stop_seconds"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"launcher.{name}", value, "must be finite and above 0")
        for option in self.serve:
            if "=" not in option:
                raise ConfigError("launcher.serve", option, "must be options of arcforge-serve, FIELD=VALUE")


@dataclass
class LocalLauncherConfig(SupervisedLauncherConfig):
    """Processes of this machine. Cores are numbers as ``taskset`` has them, among those that the command may use."""

    name: str = "local"
    trainer_cores: list[int] | None = None
    """Cores of the trainer; null: half of the cores that the command may use."""
    engine_cores: list[int] | None = None
    """Cores of the server, all of its engines together; null: the other half."""
    orchestrator_cores: list[int] | None = None
    """Cores of the orchestrator, its environments and sandboxes; null: all that the command may use."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("trainer_cores", "engine_cores", "orchestrator_cores"):
            check_cores(f"launcher.{name}", getattr(self, name))


def check_cores(field: str, cores: Sequence[int] | None) -> None:
    """Refuses a list of cores that names none, or one twice.

    Raises:
        ConfigError: it does.
    """
    if cores is not None and (not cores or len(set(cores)) < len(cores) or min(cores) < 0):
        raise ConfigError(field, list(cores), "must be different numbers of cores, at least one, or null")


@dataclass
class RayLauncherConfig(SupervisedLauncherConfig):
    """Actors of Ray in one placement group (extra ``ray``). All nodes see the run's folder and its checkpoints."""

    name: str = "ray"
    address: str | None = None
    """Of a running cluster, or ``auto``; null starts one on this machine, which ends with the run."""
    strategy: str = "PACK"
    """Of the placement group: ``PACK``, ``SPREAD``, ``STRICT_PACK`` or ``STRICT_SPREAD``."""
    trainer_cpus: float = 1.0
    """CPUs of the trainer's bundle; whole ones are its threads."""
    trainer_gpus: float = 0.0
    """GPUs of that bundle."""
    engine_cpus: float = 1.0
    """CPUs of the bundle of the server with all of its engines; whole ones are the threads of each."""
    engine_gpus: float = 0.0
    """GPUs of that bundle."""
    worker_cpus: float = 1.0
    """CPUs of the bundle of the orchestrator, whose task services and sandboxes run with it."""
    worker_gpus: float = 0.0
    """GPUs of that bundle, for agents with an engine of their own and a reward model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("launcher.strategy", self.strategy, STRATEGIES)
        if self.address is not None:
            check_text("launcher.address", self.address)
        check_minimums(self, "launcher", trainer_gpus=0.0, engine_gpus=0.0, worker_gpus=0.0)
        for name in ("trainer_cpus", "engine_cpus", "worker_cpus"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"launcher.{name}", getattr(self, name), "must be finite and above 0")

    @property
    def bundles(self) -> dict[str, dict[str, float]]:
        """Resources by role."""
        return {
            "trainer": {"CPU": self.trainer_cpus, "GPU": self.trainer_gpus},
            "engine": {"CPU": self.engine_cpus, "GPU": self.engine_gpus},
            "orchestrator": {"CPU": self.worker_cpus, "GPU": self.worker_gpus},
        }
