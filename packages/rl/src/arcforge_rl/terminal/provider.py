"""Our sandbox as an environment of Harbor: ``harbor run --env arcforge_rl.terminal.provider:ArcforgeEnvironment``.

Runs in Harbor's own Python. Worlds are built of the Dockerfile, as for ``environment=terminal``, without Docker, root
or network. Commands are the agent's until Harbor lays the tests, and the verifier's from then on, so that an agent can
neither see tests nor write rewards. Processes that a command starts end with it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

from arcforge_core.contracts.sandbox import Command, CommandStatus, Sandbox, SandboxBackend, SandboxUser
from arcforge_core.errors import ArcforgeError
from arcforge_rl.sandbox.sync import shared_desk
from arcforge_rl.terminal.harbor import STEPS, HarborTask, read_task
from arcforge_rl.terminal.judging import TESTS
from arcforge_rl.terminal.rewards import FOLDER
from arcforge_rl.terminal.settings import unplayable
from arcforge_rl.terminal.worlds import World, Worlds

DAY = 86_400
"""Seconds of a command without a limit."""
LARGEST = 1 << 30
"""Bytes of one file that is downloaded."""
WORLDS = Worlds()


class ArcforgeEnvironment(BaseEnvironment):
    """One sandbox of a task.

    Raises:
        ValueError: the task asks for what sandboxes do not offer, with its key.
    """

    @staticmethod
    def type() -> str:
        """Returns the name in Harbor's results."""
        return "arcforge"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Sandboxes have no network."""
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Memory is bounded; a processor is not reserved."""
        return EnvironmentResourceCapabilities(memory_limit=True)

    def _validate_definition(self) -> None:
        try:
            self._task: HarborTask = read_task(self.environment_dir.parent)
        except ArcforgeError as error:
            raise ValueError(str(error)) from error
        reason = unplayable(self._task.settings)
        shared = self._task.section("verifier").get("environment_mode", "shared") == "shared"
        if not reason and (self.environment_dir.parent / STEPS).exists() and shared:
            reason = "verifier.environment_mode: must be separate for a task with steps"
        if reason:
            raise ValueError(f"{self.environment_dir.parent}: {reason}")
        self._sandbox: Sandbox | None = None
        self._judging = False

    async def start(self, force_build: bool) -> None:
        """Builds the world, unless another trial has it, and opens a sandbox; once more if a sandbox breaks."""

        async def opened(backend: SandboxBackend) -> tuple[World, Sandbox]:
            world = await WORLDS.take(backend, self._task)
            try:
                return world, await world.open(backend, None, [FOLDER, TESTS])
            except BaseException:
                await WORLDS.give_back(self._task)
                raise

        world, self._sandbox = await shared_desk().retry(opened)
        self._world: World = world

    async def stop(self, delete: bool) -> None:
        """Ends the sandbox and deletes its files, whatever `delete` is."""
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await shared_desk().do(lambda _: sandbox.stop())
            await shared_desk().do(lambda _: WORLDS.give_back(self._task))

    @property
    def _user(self) -> SandboxUser:
        return SandboxUser.VERIFIER if self._judging else SandboxUser.AGENT

    @property
    def _opened(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError("the sandbox is not started")
        return self._sandbox

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copies a file into the sandbox."""
        data = await asyncio.to_thread(Path(source_path).read_bytes)
        self._judging |= _of_tests(target_path)
        await shared_desk().do(lambda _: self._opened.write(str(target_path), data, self._user))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copies the files of a folder into the sandbox."""
        self._judging |= _of_tests(target_dir)
        await shared_desk().do(lambda _: self._opened.upload(Path(source_dir), str(target_dir), self._user))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copies a regular file out of the sandbox; links are refused."""
        data = await shared_desk().do(lambda _: self._opened.read(str(source_path), LARGEST, self._user))
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(Path(target_path).write_bytes, data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copies a folder out of the sandbox; links that lead outside are refused."""
        with tempfile.TemporaryDirectory() as place:
            found = Path(place, "found")
            await shared_desk().do(lambda _: self._opened.download(str(source_dir), found, self._user))
            source = found / PurePosixPath(source_dir).name
            await asyncio.to_thread(shutil.copytree, source, target_dir, symlinks=True, dirs_exist_ok=True)

    async def exec(
        self, command: str, cwd: str | None = None, env: dict[str, str] | None = None, timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:  # fmt: skip
        """Runs a command of bash; see the module about its user, whatever `user` is.

        Raises:
            RuntimeError: it did not end in time.
        """
        seconds = float(timeout_sec or DAY)
        variables: dict[str, Any] = {**self._world.env, **(self._merge_env(env) or {})}
        asked = Command(
            ("/bin/bash", "-c", command), env=variables, cwd=cwd or self._world.workdir,
            limits=self._world.limits(seconds, seconds), user=self._user,
        )  # fmt: skip
        done = await shared_desk().do(lambda _: self._opened.exec(asked))
        if done.outcome is CommandStatus.TIMEOUT:
            raise RuntimeError(f"the command did not end within {seconds:g} s")
        code = done.code if done.outcome is CommandStatus.EXIT else 128 + (done.code or 9)
        texts = [data.decode(errors="replace") for data in (done.stdout, done.stderr)]
        return ExecResult(stdout=texts[0], stderr=texts[1], return_code=code)


def _of_tests(path: str) -> bool:
    return PurePosixPath(path).is_relative_to(TESTS)
