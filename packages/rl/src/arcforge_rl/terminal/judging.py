"""The verdict: the agent's files in a fresh sandbox, where a verifier reads them as a user of its own.

Commands that collect run as the agent in a sandbox of their own, which holds no test. Only what they leave in the
folder of artefacts, and what the agent published there, reaches the verifier, besides the work directory.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from arcforge_core.contracts.environment import Score
from arcforge_core.contracts.sandbox import (
    Command,
    CommandStatus,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxFault,
    SandboxUser,
)
from arcforge_core.errors import DataError
from arcforge_rl.terminal.harbor import TEST, HarborTask, lay
from arcforge_rl.terminal.rewards import FOLDER, read_rewards, total
from arcforge_rl.terminal.trees import pack, unpack
from arcforge_rl.terminal.worlds import ARTIFACTS, World

TESTS = "/tests"
WORK = "work"
"""Name of the packed work directory; other trees are called by their paths."""
NAME = PurePosixPath(ARTIFACTS).name
PATIENCE = 4
"""Wall time of a verifier in units of its processor time, for machines that are busy."""
Trees = Mapping[str, bytes]
"""Folders that an agent left: `WORK` or an absolute path -> packed folder."""


async def left_by_agent(sandbox: Sandbox) -> dict[str, bytes]:
    """Returns the work directory and what was published as artefacts.

    Raises:
        SandboxFault: the sandbox broke.
        DataError: it is too much.
    """
    with tempfile.TemporaryDirectory() as place:
        try:
            await sandbox.snapshot(Path(place, "work"))
            await sandbox.download(ARTIFACTS, Path(place, "artifacts"))
        except SandboxFault:
            raise
        except SandboxError as error:
            raise DataError(f"the work cannot be taken: {error}") from error
        work = await asyncio.to_thread(pack, Path(place, "work"))
        return {WORK: work, ARTIFACTS: await asyncio.to_thread(pack, Path(place, "artifacts", NAME))}


async def judge(
    backend: SandboxBackend, world: World, task: HarborTask, trees: Trees
) -> tuple[Score, dict[str, float]] | None:
    """Returns the score with its reason, and all rewards by name; None if the verifier exceeded its time limit.

    Raises:
        SandboxFault: a sandbox broke.
    """
    settings = task.section("verifier")
    with tempfile.TemporaryDirectory() as place:
        base = Path(place, "base")
        base.mkdir()
        await asyncio.to_thread(unpack, trees[WORK], base)
        published = dict(trees)
        if hooks := settings.get("collect", []):
            published[ARTIFACTS] = await _collected(backend, world, base, hooks)
        start = await _start(world, task, base, trees, Path(place))
        sandbox = await world.open(backend, start, [FOLDER, TESTS])
        try:
            await _publish(sandbox, published[ARTIFACTS], Path(place))
            with tempfile.TemporaryDirectory() as tests:
                await asyncio.to_thread(lay, task.tests, Path(tests))
                await sandbox.upload(Path(tests), TESTS, SandboxUser.VERIFIER)
            return await _verdict(sandbox, world, task)
        finally:
            await sandbox.stop()


async def _verdict(sandbox: Sandbox, world: World, task: HarborTask) -> tuple[Score, dict[str, float]] | None:
    settings = task.section("verifier")
    seconds = float(settings.get("timeout_sec", 600.0))
    env = {**world.env, **settings.get("env", {})}
    limits = world.limits(seconds, seconds * PATIENCE)
    command = Command(("/bin/bash", f"{TESTS}/{TEST}"), env=env, cwd=world.workdir, limits=limits,
                      user=SandboxUser.VERIFIER)  # fmt: skip
    done = await sandbox.exec(command)
    if done.outcome is CommandStatus.TIMEOUT:
        return None
    try:
        rewards = await read_rewards(sandbox)
        value = total(rewards)
    except DataError as error:
        return Score(0.0, f"{error} (tests: {done.outcome.value} {done.code})"), {}
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return Score(value, lines[-1][:300] if lines else f"reward {value:g}"), rewards


async def _collected(backend: SandboxBackend, world: World, base: Path, hooks: list[Mapping[str, object]]) -> bytes:
    sandbox = await world.open(backend, base)
    try:
        for hook in hooks:
            seconds = float(str(hook.get("timeout_sec", 60.0)))
            limits = world.limits(seconds, seconds * PATIENCE)
            words = ("/bin/bash", "-c", str(hook["command"]))
            await sandbox.exec(Command(words, env=world.env, cwd=world.workdir, limits=limits))
        with tempfile.TemporaryDirectory() as place:
            try:
                await sandbox.download(ARTIFACTS, Path(place, "artifacts"))
                return await asyncio.to_thread(pack, Path(place, "artifacts", NAME))
            except SandboxFault:
                raise
            except (SandboxError, DataError):  # too much, or links that lead outside: then nothing was collected
                Path(place, "none").mkdir()
                return await asyncio.to_thread(pack, Path(place, "none"))
    finally:
        await sandbox.stop()


async def _start(world: World, task: HarborTask, base: Path, trees: Trees, place: Path) -> Path:
    """Returns the work directory of the verifier: the agent's, or a fresh one with declared artefacts in it."""
    settings = task.section("verifier")
    if settings.get("environment_mode", "shared") == "shared":
        return base
    sources = [one if isinstance(one, str) else one["source"] for one in task.settings.get("artifacts", [])]
    paths = [PurePosixPath(world.workdir, source) for source in sources]
    if any(PurePosixPath(world.workdir).is_relative_to(path) for path in paths):
        return base
    fresh = place / "fresh"
    await asyncio.to_thread(_mixed, world, trees[WORK], paths, fresh)
    return fresh


def _mixed(world: World, work: bytes, paths: list[PurePosixPath], target: Path) -> None:
    """Lays the world's own files without `paths`, then these from the work, never through links."""
    target.mkdir()
    unpack(pack(world.base), target)
    for path in paths:
        if not path.is_relative_to(world.workdir):
            continue
        name = str(path.relative_to(world.workdir))
        goal = target / name
        if goal.is_symlink() or goal.is_file():
            goal.unlink()
        shutil.rmtree(goal, ignore_errors=True)
        unpack(work, target, name)


async def _publish(sandbox: Sandbox, data: bytes, place: Path) -> None:
    folder = place / "artifacts"
    folder.mkdir()
    await asyncio.to_thread(unpack, data, folder)
    await sandbox.upload(folder, ARTIFACTS)
