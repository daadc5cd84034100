"""Runs the tests of a repository in fresh sandboxes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from arcforge_core.contracts.sandbox import Command, Sandbox, SandboxBackend
from arcforge_rl.sandbox.sync import shared_desk
from arcforge_rl.swe.languages.base import WORKDIR, Language, RunRequest
from arcforge_rl.swe.patches import Files
from arcforge_rl.swe.results import TestRun

RUNS = 3


async def runs_of(
    language: Language, tree: Path, files: Files, packages: Sequence[str], paths: Sequence[str], seconds: float,
    numbers: Iterable[int] = range(RUNS),
) -> list[TestRun]:  # fmt: skip
    """Returns runs of tests over a tree with some files replaced, each in a fresh sandbox and its own order.

    Args:
        language, tree: the repository.
        files: that replace the tree's; None deletes one.
        packages: of its set-up.
        paths: test files.
        seconds: bound of one run.
        numbers: of the runs; each decides the order of one, and 0 keeps the runner's.

    Raises:
        LayerError: a layer cannot be fetched.
        SandboxFault: the sandbox broke.
    """
    desk, layers = shared_desk(), language.shown(packages)

    def one(number: int):  # type: ignore[no-untyped-def]
        async def work(backend: SandboxBackend) -> TestRun:
            sandbox = await opened(backend, language, tree, layers)
            try:
                await lay(sandbox, files)
                return await language.run(
                    RunRequest(sandbox, desk.python, paths, seconds, seed_of(number), packages=packages)
                )
            finally:
                await sandbox.stop()

        return work

    return [await desk.do(one(number)) for number in numbers]


async def opened(
    backend: SandboxBackend, language: Language, tree: Path, layers: Sequence[tuple[Path, str]]
) -> Sandbox:
    """Opens a sandbox with a repository as its work directory."""
    return await backend.open(tree, language.limits, layers=layers, workdir=WORKDIR)


async def lay(sandbox: Sandbox, files: Mapping[str, str | None]) -> None:
    """Writes files into the repository; None deletes one."""
    gone = [path for path, text in files.items() if text is None]
    if gone:
        await sandbox.exec(Command(("xargs", "-0", "rm", "-f", "--"), "\0".join(gone).encode(), cwd=WORKDIR))
    for path, text in files.items():
        if text is not None:
            await sandbox.write(f"{WORKDIR}/{path}", text.encode())


def seed_of(number: int) -> str:
    """Returns the seed of a run's order; the first run keeps the runner's."""
    return "" if number == 0 else hashlib.sha256(f"order {number}".encode()).hexdigest()[:8]
