"""``launcher=ray``: the processes of a run as actors of Ray, in the bundles of one placement group.

An actor holds one process on its node, and its death ends that process. The process is the one that ``launcher=local``
starts, with the same errand, so a run does not depend on which of the two has started it.
"""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from arcforge_core.console.progress import say
from arcforge_core.console.result import Result
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.configs.launching import RayLauncherConfig
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.launch.child import Child, Launched, ProcessPart
from arcforge_rl.launch.local import Maker, supervised
from arcforge_rl.launch.parts import launcher_of, wants_socket
from arcforge_rl.launch.supervisor import ENGINE, TRAINER

LOOPBACK = "127.0.0.1"
ASK_SECONDS = 30.0
"""For an answer of an actor, beyond which it counts as busy."""
STORE_BYTES = 100 << 20
"""Object store of a cluster of our own; nothing large passes through it."""
KEPT = ("CUDA_VISIBLE_DEVICES",)
"""Variables that Ray sets for an actor, and its process has from it."""


def the(module: str) -> Any:
    """Returns a module of Ray, which is an extra: imported on first use, without types."""
    return importlib.import_module(module)


class Spot(NamedTuple):
    """Where an actor is.

    Attributes:
        address: IP address of its node.
        port: that is free there.
    """

    address: str
    port: int


class Keeper:
    """The actor: holds a process. Calls come one by one, in the thread that the process is bound to."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def spot(self) -> Spot:
        """Returns where this is."""
        address = the("ray.util").get_node_ip_address()
        with socket.socket() as free:
            free.bind((address, 0))
            return Spot(address, free.getsockname()[1])

    def start(self, part: ProcessPart) -> None:
        """Starts the process."""
        own = {name: os.environ[name] for name in KEPT if name in os.environ}
        self._child = Child(replace(part, variables={**part.variables, **own}))

    def poll(self) -> int | None:
        """See `Launched`."""
        assert self._child is not None
        return self._child.poll()

    def signal(self, number: int) -> None:
        """See `Launched`."""
        assert self._child is not None
        self._child.signal(number)

    def release(self) -> None:
        """Kills the process, if one was started."""
        if self._child is not None:
            self._child.release()


class Kept:
    """A process that an actor holds. Implements `Launched`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def poll(self) -> int | None:
        """See `Launched`; a process whose actor is dead was killed with it."""
        try:
            code: int | None = self._ask("poll")
        except the("ray.exceptions").RayActorError:
            return -signal.SIGKILL
        return code

    def signal(self, number: int) -> None:
        """See `Launched`."""
        with suppress(the("ray.exceptions").RayActorError):  # its process has ended with it
            self._ask("signal", number)

    def release(self) -> None:
        """See `Launched`."""
        with suppress(the("ray.exceptions").RayActorError):
            self._ask("release")
        the("ray").kill(self._actor)

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            return the("ray").get(getattr(self._actor, name).remote(*arguments), timeout=ASK_SECONDS)
        except the("ray.exceptions").GetTimeoutError:  # on a busy machine
            return None


class Cluster:
    """The bundles of a run, and the actors in them."""

    def __init__(self, config: RayLauncherConfig, group: Any) -> None:
        self.config, self.group = config, group
        self.spots: dict[str, Spot] = {}
        self._ready: dict[str, Any] = {}

    def prepare(self, role: str) -> None:
        """Makes an actor for the next process of a role, unless there is one.

        Raises:
            ArcforgeError: it does not come up.
        """
        if role in self._ready:
            return
        bundle = self.config.bundles[role]
        ray, errors = the("ray"), the("ray.exceptions")
        place = the("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy(
            self.group, list(self.config.bundles).index(role)
        )
        options = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "scheduling_strategy": place}
        actor = ray.remote(Keeper).options(**options).remote()
        try:
            self.spots[role] = Spot(*ray.get(actor.spot.remote(), timeout=self.config.start_seconds))
        except (errors.GetTimeoutError, errors.RayActorError) as error:
            raise ArcforgeError(f"the actor of the {role} does not come up: {error}") from error
        self._ready[role] = actor

    def start(self, part: ProcessPart) -> Launched:
        """Starts a process in the actor that was prepared for it."""
        actor = self._ready.pop(part.role)
        the("ray").get(actor.start.remote(part), timeout=self.config.start_seconds)
        return Kept(actor)

    @property
    def apart(self) -> bool:
        """Whether the actors are on different nodes."""
        return len({spot.address for spot in self.spots.values()}) > 1


class RayMaker(Maker):
    """Makes the parts of a run for a cluster; an actor that replaces another one may be on another node."""

    def __init__(self, config: RlConfig, cluster: Cluster) -> None:
        serve, variables = [], dict(os.environ)
        self.cluster, self._engine_at = cluster, cluster.spots[ENGINE].address
        if cluster.apart:  # then other machines reach the server, and it asks everybody for a key
            serve.append(f"host={self._engine_at}")
            variables["ARCFORGE_SERVE_KEYS"] = secrets.token_urlsafe()
        super().__init__(config, self._meeting(), None, {}, variables, serve)
        self.threads = int(cluster.config.trainer_cpus) or None
        self.omp = {ENGINE: max(1, int(cluster.config.engine_cpus))}

    def before(self, role: str) -> None:
        """Makes the actor, unless there is one, and learns where it is."""
        self.cluster.prepare(role)
        if self.cluster.spots[ENGINE].address != self._engine_at:
            raise ArcforgeError(f"the node {self._engine_at} of the engine's server is gone: resume the run")
        if role == TRAINER and self.address is not None:
            self.address = self._meeting()

    def _meeting(self) -> tuple[str, int]:
        spot = self.cluster.spots[TRAINER]
        return (spot.address if self.cluster.apart else LOOPBACK), spot.port


def run(config: RlConfig) -> Result:
    """Starts the processes of a run as actors, and supervises them to its end.

    Raises:
        ConfigError, CheckpointError: before anything is started.
        ArcforgeError: see `arcforge_rl.launch.local.run`.
    """
    launcher_of(config)
    launcher = config.launcher
    assert isinstance(launcher, RayLauncherConfig)
    if wants_socket(config):
        accepted = "must be named with launcher=ray: a sandbox reaches a socket of its own node only"
        raise ConfigError("harness.gateway_socket", None, accepted)
    with connected(launcher) as cluster:
        maker = RayMaker(config, cluster)
        say("; ".join(f"{role} on node {spot.address}" for role, spot in cluster.spots.items()))
        return supervised(config, maker, cluster.start)


@contextmanager
def connected(config: RayLauncherConfig) -> Iterator[Cluster]:
    """Connects to the cluster, or starts one, and reserves the bundles of a run.

    Raises:
        ConfigError: Ray is not installed, the cluster is not there, or has no room.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # its reports are opted in to
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # an actor without a GPU keeps the variable
    try:
        ray = the("ray")
    except ImportError as error:
        accepted = f"needs the package ray: pip install 'arcforge-rl[ray]' ({error})"
        raise ConfigError("launcher", "ray", accepted) from error
    placement, errors = the("ray.util.placement_group"), the("ray.exceptions")
    bundles = [{name: amount for name, amount in each.items() if amount} for each in config.bundles.values()]
    ours = not ray.is_initialized()
    if ours:
        start_ray(config, bundles)
    try:
        group = placement.placement_group(bundles, strategy=config.strategy)
        try:
            ray.get(group.ready(), timeout=config.start_seconds)
        except errors.GetTimeoutError as error:
            wanted, there = ("; ".join(map(written, each)) for each in (bundles, [ray.cluster_resources()]))
            accepted = f"has no room within {config.start_seconds:g} s for the bundles {wanted}: it has {there}"
            raise ConfigError("launcher.address", config.address, accepted) from error
        cluster = Cluster(config, group)
        try:
            for role in config.bundles:
                cluster.prepare(role)
            yield cluster
        finally:
            placement.remove_placement_group(group)
    finally:
        if ours:
            ray.shutdown()


def start_ray(config: RayLauncherConfig, bundles: list[dict[str, float]]) -> None:
    """Connects to the configured cluster, or starts one that has room for the bundles' CPUs.

    Raises:
        ConfigError: it is not there.
    """
    ray = the("ray")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if config.address is None:
        cpus = sum(bundle.get("CPU", 0) for bundle in bundles)
        seconds = str(int(config.start_seconds))  # busy machines need more than Ray's own minute
        os.environ.setdefault("RAY_worker_register_timeout_seconds", seconds)
        own = {"num_cpus": max(os.cpu_count() or 1, -int(-cpus // 1)), "object_store_memory": STORE_BYTES}
        start: Callable[[], Any] = partial(ray.init, include_dashboard=False, **own, **quiet)
        what, last = "cannot be started", time.monotonic() + config.start_seconds
    else:
        start, what, last = partial(ray.init, address=config.address, **quiet), "is not there", 0.0
    while True:
        try:
            start()
            return
        except Exception as error:  # Ray raises its own, the system's, and bare ones after 30 s on a busy machine
            ray.shutdown()
            if time.monotonic() > last:
                raise ConfigError("launcher.address", config.address, f"Ray {what}: {error}") from error


def written(resources: Mapping[str, float]) -> str:
    """Returns resources in words, without those of single nodes."""
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items()) if not name.startswith("node:"))
