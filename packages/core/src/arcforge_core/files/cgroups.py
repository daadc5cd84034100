"""The processor time that the control groups of this process allow; torch-free."""

from __future__ import annotations

import contextlib
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CGROUPS_OF_PROCESS = Path("/proc/self/cgroup")


def cgroup_quota() -> float:
    """Returns the smallest CPU quota, in cores, of this process's control groups and their parents; inf without one."""
    try:
        lines = CGROUPS_OF_PROCESS.read_text().splitlines()
    except OSError:  # not Linux
        return float("inf")
    quota = float("inf")
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            root, read = CGROUPS, _quota_2
        elif "cpu" in controllers.split(","):
            root, read = CGROUPS / controllers, _quota_1
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            quota = min(quota, read(folder))
            if folder == root:
                break
    return quota


def _quota_1(folder: Path) -> float:
    with contextlib.suppress(OSError):  # the root has no quota, and a container may not see its own group
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else float("inf")
    return float("inf")


def _quota_2(folder: Path) -> float:
    with contextlib.suppress(OSError):
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period) if quota != "max" else float("inf")
    return float("inf")
