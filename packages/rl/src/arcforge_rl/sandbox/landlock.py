"""Sandboxes by Landlock and a system-call filter alone, for machines where namespaces may not be made.

Weaker than bubblewrap by what `Landlock.gaps` lists; ``sandbox=auto`` takes it only where bubblewrap does not work, and
says so.
"""

from __future__ import annotations

import sys
from typing import Any

from arcforge_core.contracts.sandbox import SandboxError
from arcforge_rl.configs import LandlockConfig
from arcforge_rl.sandbox import system
from arcforge_rl.sandbox.bubblewrap import limits_of, memory_gap, visible
from arcforge_rl.sandbox.cgroups import find_parents
from arcforge_rl.sandbox.facts import system_call_filter
from arcforge_rl.sandbox.kept import KeptBackend, as_whom

OLDEST = 6
"""The first version that keeps signals and abstract sockets inside; with less, a program could kill its caller."""

GAPS = (
    "names, sizes and times of files everywhere can be asked for, contents cannot be read",
    "the work folder is not bounded as a whole, only each file; files count against the host's disk",
    "there is no /workspace: paths are relative to the work directory; attributes of files cannot be changed by path",
)


class Landlock(KeptBackend):
    """Target of ``sandbox=landlock``."""

    name = "landlock"
    own_view = False

    def __init__(self, config: LandlockConfig) -> None:
        super().__init__(limits_of(config))
        self.config = config

    def keeper_config(self) -> dict[str, Any]:
        """Returns the keeper's configuration."""
        if sys.platform != "linux":
            raise SandboxError(f"Landlock needs Linux, this is {sys.platform}")
        abi = system.landlock_abi()
        if abi < OLDEST:
            raise SandboxError(f"this kernel's Landlock has version {abi}; {OLDEST} (Linux 6.12) is needed")
        return {
            "way": "landlock",
            "user": as_whom(),
            "read_only": visible(self.config.read_only),
            "cgroups": [[p.folder, p.version, p.controllers] for p in find_parents(self.config.cgroup)],
        }

    def describe(self) -> str:
        """Returns the version."""
        return f"Landlock version {system.landlock_abi()}, seccomp"

    def facts(self) -> dict[str, str]:
        """Returns what of this machine it needs."""
        version = system.landlock_abi() if sys.platform == "linux" else 0
        return {"Landlock": f"version {version}, {OLDEST} is needed", "system-call filter": system_call_filter()}

    def gaps(self) -> tuple[str, ...]:
        """Returns what namespaces would have stopped."""
        counted = any("pids" in parent.controllers for parent in find_parents(self.config.cgroup))
        shared = () if counted else ("processes are counted with all others of the same user",)
        return (*GAPS, *shared, *memory_gap(self.config.cgroup))
