"""Drafts of template families, and the Harbor tasks that they become."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import resources
from typing import Any

from arcforge_rl.terminal.dockerfile import WORKDIR
from arcforge_rl.terminal.harbor import HarborTask

SECONDS = 60.0
"""Processor time of a verifier."""
IMAGE = "debian:bookworm-slim"
SETUP = ".setup.sh"
OURS = "arcforge"
"""Entry of a task's metadata."""
TEST = """#!/bin/bash
mkdir -p /logs/verifier
if python3 -I /tests/check.py /tests/rules.json; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""
WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbour", "inlet", "jasper", "kelp", "lagoon",
    "maple", "nectar", "onyx", "pebble", "quartz", "reed", "sable", "thistle", "umber", "violet", "willow", "yarrow",
)  # fmt: skip
Rule = Mapping[str, Any]


@dataclass(frozen=True)
class Draft:
    """A task of a family; all paths are below `WORKDIR`.

    Attributes:
        instruction: for the agent.
        files: of the world.
        rules: of `checks`, which hold for a right result only.
        solve: a script of bash that does it.
        cheats: scripts of bash that look as if they did it.
        setup: a script that completes the world, run when it is built.
        collect: commands that run the agent's programs, or look at what only the agent's user sees, and write into
            ``/logs/artifacts``.
        packages: Debian packages that task and verifier need, python3 besides.
        check: a program of Python that judges in the place of `rules`: it ends with code 0 only over right results.
        results: paths that `check` reads.
    """

    instruction: str
    files: Mapping[str, str | bytes]
    rules: Sequence[Rule]
    solve: str
    cheats: Sequence[str]
    setup: str = ""
    collect: Sequence[str] = ()
    packages: Sequence[str] = field(default_factory=tuple)
    check: str = ""
    results: Sequence[str] = ()


Family = Callable[[random.Random], Draft]
"""Draws a task; equal states of the generator give equal tasks."""


def at(path: str) -> str:
    """Returns the absolute path of a file of the work directory."""
    return path if path.startswith("/") else f"{WORKDIR}/{path}"


def rule(kind: str, path: str, **more: Any) -> Rule:
    """Returns a rule of `checks`."""
    return {"kind": kind, "path": at(path), **more}


def digest(data: str | bytes) -> str:
    """Returns the hash by which rules name contents."""
    return sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def python(program: str) -> str:
    """Returns a script of bash that runs a program of Python."""
    return f"python3 - <<'PROGRAM'\n{program.strip()}\nPROGRAM\n"


def writes(path: str, text: str) -> str:
    """Returns a script of bash that writes a file of whole lines."""
    return f"cat > {path} <<'CONTENT'\n{text.rstrip()}\nCONTENT\n"


def task_of(name: str, family: str, draft: Draft, **metadata: str) -> HarborTask:
    """Returns a draft as a Harbor task of schema 1.4: the verifier gets a fresh world with the agent's files.

    Args:
        name: of its folder.
        family: of the task.
        draft: the task.
        metadata: further entries of ``metadata.arcforge``, which holds family and cheats.
    """
    packages = " ".join(["python3", *draft.packages])
    lines = [
        f"FROM {IMAGE}",
        f"RUN apt-get update && apt-get install -y --no-install-recommends {packages}",
        f"WORKDIR {WORKDIR}",
        "COPY files/ ./",
    ]
    files = {f"files/{path}": _bytes(text) for path, text in draft.files.items()}
    if draft.setup:
        files[f"files/{SETUP}"] = _bytes(draft.setup)
        lines.append(f"RUN sh {SETUP} && rm {SETUP}")
    verifier: dict[str, Any] = {"timeout_sec": SECONDS, "environment_mode": "separate"}
    if draft.collect:
        verifier["collect"] = [{"command": command, "timeout_sec": SECONDS} for command in draft.collect]
    settings = {
        "schema_version": "1.4",
        "artifacts": [WORKDIR],
        "task": {"name": f"arcforge/{name}", "keywords": [family]},
        "metadata": {OURS: {"family": family, **metadata, "cheats": [*draft.cheats]}},
        "agent": {"timeout_sec": 1800.0},
        "verifier": verifier,
        "environment": {"network_mode": "no-network", "memory_mb": 1024, "storage_mb": 256},
    }
    tests = {
        "test.sh": TEST.encode(),
        "check.py": draft.check.encode() or resources.files("arcforge_rl.terminal").joinpath("checks.py").read_bytes(),
        "rules.json": json.dumps(draft.rules, indent=1).encode(),
    }
    solution = {"solve.sh": _bytes(f"#!/bin/bash\nset -e\ncd {WORKDIR}\n{draft.solve.strip()}\n")}
    environment = {"Dockerfile": _bytes("\n".join(lines) + "\n"), **files}
    return HarborTask(name, draft.instruction.strip() + "\n", environment, tests, solution, settings)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
