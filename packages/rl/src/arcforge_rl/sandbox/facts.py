"""Describes what this machine permits, for ``arcforge doctor sandbox``. Informative only: probes decide."""

from __future__ import annotations

import platform
from pathlib import Path

from arcforge_rl.sandbox.cgroups import find_parents
from arcforge_rl.sandbox.seccomp import ARCHITECTURES

SWITCHES = {
    "/proc/sys/user/max_user_namespaces": "0",
    "/proc/sys/kernel/unprivileged_userns_clone": "0",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
}
"""Setting -> the value that forbids user namespaces to ordinary users or to programs without a profile."""


def user_namespaces(root: str = "") -> str:
    """Returns whether ordinary users may create user namespaces, according to the settings."""
    forbidding = [path for path, value in SWITCHES.items() if _read(root + path) == value]
    if not Path(f"{root}/proc/sys/user/max_user_namespaces").exists():
        return "unknown on this system"
    return f"restricted by {', '.join(forbidding)}" if forbidding else "allowed by every setting"


def system_call_filter(root: str = "") -> str:
    """Returns whether the kernel filters system calls, and whether this package has a filter for this processor."""
    if "errno" not in _read(f"{root}/proc/sys/kernel/seccomp/actions_avail").split():
        return "not supported by the kernel"
    known = platform.machine() in ARCHITECTURES
    return "available" if known else f"available, but arcforge has no filter for {platform.machine()}"


def control_groups(chosen: str | None) -> str:
    """Returns the controllers whose groups may be created, and where."""
    parents = find_parents(chosen)
    found = [f"{name} (version {p.version}, below {p.folder})" for p in parents for name in p.controllers]
    return ", ".join(found) or "none can be created by this process"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:  # the system has no such setting
        return ""
