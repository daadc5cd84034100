"""Runs the tests of a repository in a fresh sandbox, with tests planted that must fail."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path, PurePosixPath

from arcforge_core.contracts.sandbox import Command, Sandbox, SandboxBackend, SandboxLimits
from arcforge_rl.layers.recipes import TOOLS
from arcforge_rl.swe.results import FAILED, TestRun, read_run

WORKDIR = "/testbed"
ROOTS = (WORKDIR, f"{WORKDIR}/src", f"{WORKDIR}/lib")
"""Folders of the repository from which Python imports."""
PACKAGES = f"{TOOLS}/site"
"""Folder of the packages that a repository needs, in its layer."""
LIMITS = SandboxLimits(
    cpu_seconds=300, wall_seconds=300, memory_bytes=2 << 30, processes=128, disk_bytes=512 << 20, output_bytes=32 << 20
)
WORDS = (
    "values",
    "empty",
    "nested",
    "order",
    "default",
    "string",
    "unicode",
    "copy",
    "none",
    "repeat",
    "limits",
    "types",
)
CANARY = "def test_{name}():\n    found = {made}\n    assert found == {wanted}\n"


async def run_tests(
    sandbox: Sandbox, python: str, paths: Sequence[str], *, seconds: float, seed: str = "", canaries: bool = True
) -> TestRun:
    """Runs test files of the work directory.

    Args:
        sandbox: with the repository and layers.
        python: interpreter inside.
        paths: test files or folders.
        seconds: bound of the run.
        seed: decides the order of the tests; empty: pytest's.
        canaries: plants a file of failing tests into each folder; a run that reports one as anything else is not whole.

    Raises:
        SandboxFault: the sandbox broke.
    """
    key, planted = secrets.token_hex(32), dict[str, int]()
    folders = sorted({str(PurePosixPath(path).parent) for path in paths})
    for folder in folders if canaries else ():
        name, text, count = canary()
        path = str(PurePosixPath(folder) / name)
        await sandbox.write(f"{WORKDIR}/{path}", text.encode())
        planted[path] = count
    given = {
        "key": key, "paths": [*paths, *planted], "first": [f"{TOOLS}/pytest"], "sys_path": [*ROOTS, PACKAGES],
        "seed": seed,
    }  # fmt: skip
    program = resources.files("arcforge_rl.swe").joinpath("inside.py").read_text(encoding="utf-8")
    limits = replace(LIMITS, wall_seconds=seconds, cpu_seconds=seconds)
    done = await sandbox.exec(
        Command((python, "-I", "-c", program), json.dumps(given).encode(), cwd=WORKDIR, limits=limits)
    )
    run = read_run(done.stdout, key)
    if not run.whole:
        return replace(run, reason=f"{run.reason} ({done.outcome.value} {done.code})")
    return without_canaries(run, planted)


def canary() -> tuple[str, str, int]:
    """Returns a file of tests that fail: its name, text, and how many they are; no two are alike."""
    draw = random.SystemRandom()
    names = {"_".join(draw.sample(WORDS, draw.randint(2, 3))) for _ in range(draw.randint(2, 5))}
    tests = []
    for name in sorted(names):
        made = [draw.randint(0, 99) for _ in range(draw.randint(1, 4))]
        wanted = [*made[:-1], made[-1] + draw.randint(1, 9)]
        tests.append(CANARY.format(name=name, made=made, wanted=wanted))
    return f"test_{'_'.join(draw.sample(WORDS, 3))}.py", "\n\n".join(tests), len(tests)


def without_canaries(run: TestRun, planted: Mapping[str, int]) -> TestRun:
    """Returns a run without its planted tests; not whole if one of them is not reported as failed."""
    seen = {test: outcome for test, outcome in run.outcomes.items() if test.split("::")[0] in planted}
    rest = {test: outcome for test, outcome in run.outcomes.items() if test not in seen}
    if len(seen) != sum(planted.values()) or any(outcome != FAILED for outcome in seen.values()):
        return replace(run, outcomes=rest, whole=False, reason="a planted test that fails was not reported as failed")
    return replace(run, outcomes=rest)


async def opened(
    backend: SandboxBackend, tree: Path, layers: Sequence[tuple[Path, str]], limits: SandboxLimits | None = None
) -> Sandbox:
    """Opens a sandbox with a repository as its work directory."""
    return await backend.open(tree, limits or LIMITS, layers=layers, workdir=WORKDIR)


def seed_of(number: int) -> str:
    """Returns the seed of a run's order; the first run keeps pytest's."""
    return "" if number == 0 else hashlib.sha256(f"order {number}".encode()).hexdigest()[:8]
