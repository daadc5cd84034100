"""Sandboxes by Landlock and a system-call filter alone, for machines where namespaces cannot be created.

Weaker than bubblewrap by the list in `Landlock.gaps`; ``sandbox=auto`` uses it only if bubblewrap does not work, and
logs a warning.
"""

from __future__ import annotations

import sys
from typing import Any

from arcforge_core.contracts.sandbox import SandboxError
from arcforge_rl.sandbox import system
from arcforge_rl.sandbox.cgroups import find_parents
from arcforge_rl.sandbox.facts import system_call_filter
from arcforge_rl.sandbox.supervised import KeptBackend, memory_gap

OLDEST = 6
"""The first version that confines signals and abstract sockets; with an older one, a program could kill its caller."""

GAPS = (
    "names, sizes and times of files everywhere are visible, contents are not",
    "the work directory is not bounded as a whole, only each file; files count against the host's disk",
    "files of the host that may be read may also be locked",
    "there is no /workspace: paths are relative to the work directory; attributes of files cannot be changed by path",
)


class Landlock(KeptBackend):
    """Target of ``sandbox=landlock``."""

    name = "landlock"
    views: tuple[str, ...] | None = None
    forwards = False

    def requirements(self) -> dict[str, Any]:
        """Returns nothing: the kernel is enough if it is new enough."""
        abi = system.landlock_abi()
        if abi < OLDEST:
            raise SandboxError(f"this kernel's Landlock has version {abi}, must be at least {OLDEST} (Linux 6.12)")
        return {}

    def describe(self) -> str:
        return f"Landlock version {system.landlock_abi()}, seccomp"

    def facts(self) -> dict[str, str]:
        """Returns the properties of this machine that it needs."""
        version = system.landlock_abi() if sys.platform == "linux" else 0
        return {"Landlock": f"version {version}, {OLDEST} is needed", "system-call filter": system_call_filter()}

    def gaps(self) -> tuple[str, ...]:
        """Returns the limits that only namespaces could enforce."""
        counted = any("pids" in parent.controllers for parent in find_parents(self.config.cgroup))
        shared = () if counted else ("processes are counted with all others of the same user",)
        return (*GAPS, *shared, *memory_gap(self.config.cgroup))
