"""Which cores the parts of a run have."""

from __future__ import annotations

import os
from collections.abc import Sequence

from arcforge_core.errors import ConfigError
from arcforge_rl.configs.launching import LocalLauncherConfig


def usable_cores(quota: float) -> list[int]:
    """Returns the cores that this process may use.

    Args:
        quota: cores' worth of time that its control groups allow; cores beyond it are left out.
    """
    cores = sorted(os.sched_getaffinity(0))
    return cores[: max(1, int(min(len(cores), quota)))]


def cores_of(config: LocalLauncherConfig, usable: Sequence[int]) -> dict[str, list[int]]:
    """Returns the cores of each role: as configured, otherwise the trainer and the engines share the rest in halves.

    Trainer and engines compute, so they do not meet on a core if there are two; the orchestrator waits, mostly.

    Raises:
        ConfigError: a core is none that this process may use.
    """
    allowed = os.sched_getaffinity(0)
    given = {
        "trainer": config.trainer_cores,
        "engine": config.engine_cores,
        "orchestrator": config.orchestrator_cores,
    }
    for role, cores in given.items():
        if cores is not None and not set(cores) <= allowed:
            accepted = f"must be among the cores that this process may use: {', '.join(map(str, sorted(allowed)))}"
            raise ConfigError(f"launcher.{role}_cores", cores, accepted)
    found = {role: list(cores) for role, cores in given.items() if cores is not None}
    computing = [role for role in ("trainer", "engine") if role not in found]
    taken = {core for role in ("trainer", "engine") for core in found.get(role, ())}
    free = [core for core in usable if core not in taken] or list(usable)
    for place, role in enumerate(computing):
        size = -(-len(free) // len(computing))
        found[role] = free[place * size : (place + 1) * size] or list(free)
    return {"orchestrator": list(usable), **found}
