"""Worlds of tasks: the work directory, layers and variables that a Dockerfile describes, built in a sandbox."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from arcforge_core.contracts.environment import EpisodeFailure
from arcforge_core.contracts.sandbox import Command, Sandbox, SandboxBackend, SandboxError, SandboxFault, SandboxLimits
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import Recipe
from arcforge_rl.terminal.dockerfile import BuildStep, read_dockerfile
from arcforge_rl.terminal.harbor import Files, HarborTask, lay
from arcforge_rl.terminal.settings import megabytes

ARTIFACTS, AGENT_LOGS, SOLUTION = "/logs/artifacts", "/logs/agent", "/solution"
FOLDERS = (ARTIFACTS, AGENT_LOGS, SOLUTION)
"""Folders of agents besides the work directory; that of the solution is empty unless the oracle plays."""
INSTALLED = Path("/var/lib/dpkg/info")
SITE = "/usr/lib/arcforge/terminal"


@dataclass(frozen=True)
class World:
    """Where agent and verifier of a task work.

    Attributes:
        base: initial contents of the work directory.
        layers: for `SandboxBackend.open`.
        env: variables of every command.
        workdir: path of the work directory.
        memory_mb, storage_mb: bounds of a sandbox.
    """

    base: Path
    layers: Sequence[tuple[Path, str]]
    env: Mapping[str, str]
    workdir: str
    memory_mb: int
    storage_mb: int

    def limits(self, cpu_seconds: float, wall_seconds: float) -> SandboxLimits:
        """Returns the limits of a sandbox or command."""
        return SandboxLimits(
            cpu_seconds, wall_seconds, self.memory_mb << 20, processes=128, disk_bytes=self.storage_mb << 20,
            output_bytes=4 << 20,
        )  # fmt: skip

    async def open(self, backend: SandboxBackend, base: Path | None = None, verifier: Sequence[str] = ()) -> Sandbox:
        """Opens a sandbox, with another work directory if `base` is given."""
        return await backend.open(
            base or self.base, self.limits(60, 120), layers=self.layers, folders=FOLDERS, verifier_folders=verifier,
            workdir=self.workdir,
        )  # fmt: skip

    async def wait_until_healthy(self, sandbox: Sandbox, check: Mapping[str, Any]) -> None:
        """Runs a health check until it ends with code 0.

        Raises:
            EpisodeFailure: it does not.
        """
        seconds = float(check.get("timeout_sec", 30.0))
        command = Command(
            ("/bin/bash", "-c", check["command"]), env=self.env, cwd=self.workdir, limits=self.limits(seconds, seconds)
        )
        for attempt in range(check.get("retries", 3) + 1):
            if attempt:
                await asyncio.sleep(float(check.get("interval_sec", 5.0)))
            if (done := await sandbox.exec(command)).ok:
                return
        raise EpisodeFailure("environment", f"the health check ended with {done.outcome.value} {done.code}")


class Worlds:
    """Builds worlds; those in use at the same time are shared."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[asyncio.Task[World], int]] = {}

    async def take(self, backend: SandboxBackend, task: HarborTask) -> World:
        """Returns the world of a task until it is given back; on the event loop of the backend only.

        Raises:
            DataError: the Dockerfile cannot be built, with its line.
            SandboxFault: the sandbox broke; the next call builds once more.
            ConfigError: the backend shows no folders of its own.
            LayerError: a package cannot be fetched.
        """
        if backend.views is None:
            raise ConfigError("sandbox", backend.name, "has no folders of its own; must be bubblewrap or docker")
        making, users = self._used.get(task.digest, (None, 0))
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            making = asyncio.create_task(_build(backend, task))
        self._used[task.digest] = making, users + 1
        try:
            return await asyncio.shield(making)
        except BaseException:
            await self.give_back(task)
            raise

    async def give_back(self, task: HarborTask) -> None:
        """Gives a world back; the last user removes its files."""
        making, users = self._used.pop(task.digest)
        if users > 1:
            self._used[task.digest] = making, users - 1
        elif not making.done():
            making.cancel()
        elif not making.cancelled() and making.exception() is None:
            await asyncio.to_thread(shutil.rmtree, making.result().base.parent, True)


async def _build(backend: SandboxBackend, task: HarborTask) -> World:
    where = f"{task.name}/environment/Dockerfile"
    recipe = read_dockerfile(task.environment["Dockerfile"].decode("utf-8", "replace"), where)
    settings = task.section("environment")
    place = Path(tempfile.mkdtemp(prefix="arcforge-world-"))
    workdir = settings.get("workdir", recipe.workdir)
    copies: list[BuildStep] = []
    layers: list[tuple[Path, str]] = []
    env = {**recipe.env, **settings.get("env", {})}
    outside: dict[str, dict[str, bytes]] = {}
    for step in recipe.steps:
        if step.kind == "copy":
            for path, data in copied(step, task.environment, where).items():
                if path.is_relative_to(workdir):
                    continue
                root = f"/{path.parts[1]}"
                outside.setdefault(root, {})[str(path.relative_to(root))] = data
        elif step.kind in ("apt", "pip"):
            for layer, more in await asyncio.to_thread(_packages, step):
                layers, env = [*layers, *layer], {**env, **more}
        copies.append(step)
    for root, files in outside.items():
        folder = place / "layers" / root[1:]
        folder.mkdir(parents=True)
        lay(files, folder)
        layers.append((folder, root))
    place.chmod(0o755)
    empty = place / "empty"
    empty.mkdir()
    size = megabytes(settings, "memory", 1024), min(megabytes(settings, "storage", 256), 4096)
    world = World(place / "base", layers, env, workdir, *size)
    seconds = float(settings.get("build_timeout_sec", 600.0))
    try:
        sandbox = await world.open(backend, empty)
        try:
            for step in copies:
                await _take(sandbox, step, task.environment, world, where, seconds)
            await sandbox.snapshot(world.base)
        finally:
            await sandbox.stop()
    except SandboxFault:
        await asyncio.to_thread(shutil.rmtree, place, True)
        raise
    except SandboxError as error:
        await asyncio.to_thread(shutil.rmtree, place, True)
        raise DataError(f"{where}: {error}") from error
    except BaseException:
        await asyncio.to_thread(shutil.rmtree, place, True)
        raise
    return world


async def _take(sandbox: Sandbox, step: BuildStep, files: Files, world: World, where: str, seconds: float) -> None:
    if step.kind == "copy":
        inside = {
            str(path.relative_to(world.workdir)): data
            for path, data in copied(step, files, where).items()
            if path.is_relative_to(world.workdir)
        }
        with tempfile.TemporaryDirectory() as place:
            lay(inside, Path(place))
            await sandbox.upload(Path(place), world.workdir)
    elif step.kind == "run":
        limits = world.limits(seconds, seconds)
        done = await sandbox.exec(Command(step.words, env=world.env, cwd=step.cwd, limits=limits))
        if not done.ok:
            lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines() or ["no output"]
            ending = f"{done.outcome.value} {done.code}"
            raise DataError(f"{where}:{step.line}: RUN ended with {ending} in a sandbox: {lines[-1][:200]}")


def copied(step: BuildStep, files: Files, where: str) -> dict[PurePosixPath, bytes]:
    """Returns the files of a ``COPY``: absolute path -> content.

    Raises:
        DataError: a source does not exist, or the target cannot be written.
    """
    *sources, target = step.words
    place = f"{where}:{step.line}"
    goal = _normal(PurePosixPath(step.cwd, target), place)
    found: dict[PurePosixPath, bytes] = {}
    into = target.endswith("/") or target in (".", "..") or len(sources) > 1
    for source in sources:
        name = str(PurePosixPath(source.lstrip("/"))).removeprefix("./")
        below = {path: path if name == "." else path[len(name) + 1 :] for path in files
                 if name == "." or path.startswith(f"{name}/")}  # fmt: skip
        if below:
            found |= {goal / rest: files[path] for path, rest in below.items()}
            continue
        plain = [path for path in files if path == name or ("/" not in path and fnmatchcase(path, name))]
        if not plain:
            raise DataError(f"{place}: COPY {source}: environment/ has no such file")
        found |= {goal / PurePosixPath(path).name if into or len(plain) > 1 else goal: files[path] for path in plain}
    for path in found:
        if path.parts[1] in ("tmp", "proc", "dev", "sys", "bin", "sbin", "lib", "lib64", "logs", "tests", "solution"):
            raise DataError(f"{place}: COPY to /{path.parts[1]}: not offered")
    return found


def _normal(path: PurePosixPath, place: str) -> PurePosixPath:
    if ".." in path.parts:
        raise DataError(f"{place}: COPY: {path} must not contain ..")
    return path


def _packages(step: BuildStep) -> list[tuple[list[tuple[Path, str]], dict[str, str]]]:
    """Returns the layer and variables of packages; none for what this machine has."""
    if step.kind == "apt":
        missing = sorted({name for name in step.words if not _installed(name)})
        if not missing:
            return []
        return [(list(ensure(Recipe("terminal-apt", "debian", tuple(missing))).shown), {})]
    site = f"{SITE}-{sha256(repr(sorted(step.words)).encode()).hexdigest()[:12]}"
    layer = ensure(Recipe("terminal-pip", "wheels", tuple(sorted(step.words)), prefix=site))
    return [(list(layer.shown), {"PYTHONPATH": site})]


def _installed(package: str) -> bool:
    if (INSTALLED / f"{package}.list").is_file() or any(INSTALLED.glob(f"{package}:*.list")):
        return True
    return package in PROGRAMS and all(shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
                                       for name in PROGRAMS[package])  # fmt: skip


PROGRAMS = {
    "python3": ("python3",), "python3-minimal": ("python3",), "git": ("git",), "sqlite3": ("sqlite3",),
    "make": ("make",), "gcc": ("gcc",), "build-essential": ("gcc", "make"), "coreutils": ("sha256sum",),
    "findutils": ("find",), "tar": ("tar",), "gzip": ("gzip",), "curl": ("curl",), "jq": ("jq",), "procps": ("ps",),
    "unzip": ("unzip",), "zip": ("zip",), "xz-utils": ("xz",), "perl": ("perl",), "gawk": ("gawk",), "bash": ("bash",),
}  # fmt: skip
"""Package -> programs that take its place on systems without Debian's packages."""
