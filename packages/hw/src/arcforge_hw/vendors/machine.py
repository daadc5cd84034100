"""Evidence of chips on a machine, gathered without importing torch's extensions: packages, paths, tools of drivers."""

from __future__ import annotations

import functools
import glob
import shutil
import subprocess
from importlib import metadata

from arcforge_hw.vendors.evidence import Evidence
from arcforge_hw.vendors.signs import SIGNS

SECONDS = 10.0
"""Time that a driver's tool may take; a driver that hangs is no device."""


@functools.cache
def here() -> Evidence:
    """Returns this machine's evidence, gathered once."""
    signs = SIGNS.values()
    names = {"torch", *(name for sign in signs for name in sign.distributions)}
    versions = {name: version for name in names if (version := _version(name))}
    patterns = [pattern for sign in signs for pattern in (*sign.nodes, *sign.shared_nodes, *sign.toolkits)]
    paths = frozenset(path for pattern in patterns for path in glob.glob(pattern))
    return Evidence(versions, paths, {sign.tool: _output(sign.tool) for sign in signs if _installed(sign.tool)})


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _installed(tool: str) -> bool:
    return shutil.which(tool.split()[0]) is not None


def _output(tool: str) -> str:
    try:
        done = subprocess.run(tool.split(), capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
