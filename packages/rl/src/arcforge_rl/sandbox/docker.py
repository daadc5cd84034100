"""Sandboxes as containers of a Docker daemon: one container per command, and a memory volume for the work directory."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from arcforge_core.contracts.sandbox import (
    WORKSPACE,
    Command,
    CommandStatus,
    ExecResult,
    SandboxError,
    SandboxFault,
    SandboxLimits,
    SandboxProbe,
    SandboxUser,
)
from arcforge_rl.configs.commands import DockerConfig
from arcforge_rl.sandbox import relay
from arcforge_rl.sandbox.files import SPARSE, FileOperations
from arcforge_rl.sandbox.process import StartedProcess, check_start, writer
from arcforge_rl.sandbox.streams import Collector, Feeder, Stream
from arcforge_rl.sandbox.supervised import checked, classify, limits_of
from arcforge_rl.sandbox.users import UNPRIVILEGED
from arcforge_rl.sandbox.view import View, view_of

ANSWER = 30.0
"""Seconds that the daemon may take to answer a query about itself."""
AGAIN = 0.2
"""Seconds after which a container that is to be killed is tried again."""
VERIFIER = UNPRIVILEGED - 1
"""User and group of verifiers."""
RELAY_MEMORY = 256 << 20
"""Bytes of memory of the relay's container."""
USERS = {SandboxUser.AGENT: UNPRIVILEGED, SandboxUser.VERIFIER: VERIFIER}


class Docker:
    """Target of ``sandbox=docker``."""

    name = "docker"
    forwards = True
    views: tuple[str, ...] | None = ()

    def __init__(self, config: DockerConfig) -> None:
        self.config = config
        self.limits = limits_of(config)
        self.opened: list[DockerSandbox] = []

    def probe(self) -> SandboxProbe:
        """Queries the daemon's version and the image."""
        if shutil.which(self.config.program) is None:
            reason = f"{self.config.program} was not found"
            return SandboxProbe(False, reason, facts={"docker": reason})
        try:
            version = self._ask("version", "--format", "{{.Server.Version}}")
            self._ask("image", "inspect", "--format", "{{.Id}}", self.config.image)
        except (SandboxError, OSError, subprocess.TimeoutExpired) as error:
            return SandboxProbe(False, str(error), facts={"docker": str(error)})
        return SandboxProbe(True, f"daemon {version}, image {self.config.image}", facts={"docker": f"daemon {version}"})

    def _ask(self, *arguments: str) -> str:
        command = [self.config.program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER, check=False)
        if done.returncode:
            raise SandboxError(f"{self.config.program} {arguments[0]}: {done.stderr.strip()}")
        return done.stdout.strip()

    async def open(
        self,
        base: Path | None = None,
        limits: SandboxLimits | None = None,
        forward: Mapping[int, Path] | None = None,
        *,
        layers: Sequence[tuple[Path, str]] = (),
        folders: Sequence[str] = (),
        verifier_folders: Sequence[str] = (),
        workdir: str = WORKSPACE,
    ) -> DockerSandbox:
        """Creates the volumes and the container that holds them; a base is copied in.

        Each folder has `disk_bytes` of its own; of several layers at one path only one can be shown.
        """
        view = view_of(layers, folders, verifier_folders, workdir, self.name, self.views)
        for path, given in view.layers.items():
            if len(given) > 1:
                raise SandboxError(f"layers: docker cannot lay {len(given)} folders over each other at {path}")
        probe = await asyncio.to_thread(self.probe)
        if not probe.ok:
            raise SandboxError(f"sandboxes cannot be created here: {probe.reason}")
        if base is not None and not base.is_dir():
            raise SandboxError(f"base {base} is not a directory")
        sandbox = DockerSandbox(self.config, limits or self.limits, checked(forward or {}), view)
        self.opened.append(sandbox)
        await sandbox.open()
        if base is not None:
            await sandbox.upload(base, WORKSPACE)
        return sandbox

    async def close(self) -> None:
        """Stops every sandbox."""
        while self.opened:
            await self.opened.pop().stop()

    async def __aenter__(self) -> Docker:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class DockerSandbox(FileOperations):
    """A memory volume, held by a sleeping container; commands are containers that share it."""

    def __init__(self, config: DockerConfig, limits: SandboxLimits, forward: Mapping[int, str], view: View) -> None:
        self.config, self.limits, self.forward, self.view = config, limits, forward, view
        self.id = f"arcforge-{uuid.uuid4().hex}"
        of_agents = {view.workdir: self.id, **{path: f"{self.id}-f{n}" for n, path in enumerate(view.folders)}}
        of_verifier = {path: f"{self.id}-v{n}" for n, path in enumerate(view.verifier_folders)}
        self.volumes = {SandboxUser.AGENT: of_agents, SandboxUser.VERIFIER: of_verifier}
        self.network = f"container:{self.id}" if forward else "none"
        self.stopped = False
        self.running: dict[asyncio.Task[dict[str, Any]], Callable[[], None]] = {}
        self.helpers: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Creates the volume, its holder, and the relay of forwarded ports."""
        files = max(64, self.limits.disk_bytes // 4096)
        for user, mode in ((SandboxUser.AGENT, "0755"), (SandboxUser.VERIFIER, "0700")):
            for name in self.volumes[user].values():
                size = f"size={self.limits.disk_bytes},nr_inodes={files},uid={USERS[user]},mode={mode}"
                volume = ("--driver", "local", "--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", f"o={size}")
                await self._docker("volume", "create", *volume, name)
        command = Command(("sleep", "infinity"), user=SandboxUser.VERIFIER)  # which sees, and so keeps, all volumes
        holder = self._run_arguments(self.id, self.limits, command, "none")
        await self._docker("run", "--detach", *holder)
        if self.forward:
            await self._relay()

    async def _relay(self) -> None:
        """Starts a container in the network of the others that alone sees the folders of the host's sockets."""
        places = {port: f"/forward/{port}" for port in self.forward}
        names = [f"{port}={places[port]}/{os.path.basename(path)}" for port, path in self.forward.items()]
        owner = os.stat(next(iter(self.forward.values())))
        arguments = [
            *("run", "--name", f"{self.id}-relay", "--pull", "never", "--network", self.network, "--read-only"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", f"{owner.st_uid}:{owner.st_gid}"),
            *("--pids-limit", "8", "--memory", str(RELAY_MEMORY), "--log-driver", "none"),
            *(f"--volume={os.path.dirname(path)}:{places[port]}:ro" for port, path in self.forward.items()),
            *("--entrypoint", "", self.config.image, "python3", "-I", "-c", inspect.getsource(relay), *names),
        ]
        process = await asyncio.create_subprocess_exec(
            self.config.program, *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None and process.stderr is not None
        if await process.stdout.readline() != b"listening\n":
            text = (await process.stderr.read()).decode(errors="replace").strip().rpartition("\n")[2]
            await self.stop()
            raise SandboxError(f"forward: {self.config.image} needs Python 3.11 or newer as python3: {text}")
        self._aside(process.communicate())

    async def prepare(self) -> None:
        """Does nothing: a container cannot wait for its command."""
        self._check_open()

    async def exec(self, command: Command) -> ExecResult:
        """Runs a command in its own container; see the contract."""
        self._check_open()
        if not command.argv:
            raise SandboxError("argv: must name a program")
        limits, name = command.limits or self.limits, f"{self.id}-{uuid.uuid4().hex[:8]}"
        try:
            return await self._run(name, command, limits)
        finally:
            with contextlib.suppress(SandboxFault):  # the container may not exist
                await self._docker("rm", "--force", name)

    async def start(self, command: Command, buffer_bytes: int = 1 << 16) -> StartedProcess:
        """Starts a program in a container of its own; see the contract."""
        self._check_open()
        check_start(command, buffer_bytes)
        if not command.argv:
            raise SandboxError("argv: must name a program")
        name = f"{self.id}-{uuid.uuid4().hex[:8]}"
        options = self._run_arguments(name, command.limits or self.limits, command)
        (stdin, our_in), (our_out, stdout), (our_err, stderr) = os.pipe(), os.pipe(), os.pipe()
        outputs = Stream(our_out, buffer_bytes), Stream(our_err, buffer_bytes)
        input_ = await writer(our_in)
        try:
            process = await asyncio.create_subprocess_exec(
                *(self.config.program, "run", "--interactive", "--init", *options),
                stdin=stdin, stdout=stdout, stderr=stderr,
            )  # fmt: skip
        except BaseException:
            input_.transport.abort()
            for stream in outputs:
                stream.close()
            raise
        finally:
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        killed: list[asyncio.Task[None]] = []
        ended = asyncio.create_task(self._ended(name, process, killed))

        def kill() -> None:
            if not killed and process.returncode is None:
                killed.append(asyncio.create_task(self._kill(name, process)))

        def send(number: int) -> None:
            self._aside(self._docker("kill", "--signal", str(number), name))

        self.running[ended] = kill
        ended.add_done_callback(self.running.pop)
        started = StartedProcess(ended, input_, outputs, send, kill)
        if self.stopped:
            kill()
            await ended
            self._check_open()
        return started

    def _aside(self, work: Coroutine[Any, Any, Any]) -> None:
        """Works without a caller that waits; that a container has ended is no error."""
        task = asyncio.create_task(work)
        self.helpers.add(task)
        task.add_done_callback(self.helpers.discard)
        task.add_done_callback(lambda done: done.exception())

    async def _kill(self, name: str, process: asyncio.subprocess.Process) -> None:
        """Kills a container, which may not exist yet, until its client has ended."""
        while process.returncode is None:
            with contextlib.suppress(SandboxFault):
                await self._docker("kill", name)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), AGAIN)

    async def _ended(self, name: str, process: asyncio.subprocess.Process, killed: list[Any]) -> dict[str, Any]:
        """Returns how a started program ended, and removes its container."""
        await process.wait()
        try:
            kills, code, error = await self._state(name)
        except SandboxFault as fault:  # removed with the sandbox, or the daemon is gone
            kills, code, error = 0, None, None if self.stopped else str(fault)
        with contextlib.suppress(SandboxFault):
            await self._docker("rm", "--force", name)
        return {"code": code, "kills": kills, "killed": bool(killed) or self.stopped, "error": error}

    async def _state(self, name: str) -> tuple[int, int | None, str | None]:
        """Returns out-of-memory kills, exit code and error of a container that has ended."""
        form = "{{.State.OOMKilled}} {{.State.ExitCode}} {{.State.Error}}"
        starved, code, *error = (await self._docker("inspect", "--format", form, name)).split(maxsplit=2)
        return int(starved == "true"), int(code), f"the container did not start: {error[0].strip()}" if error else None

    async def _run(self, name: str, command: Command, limits: SandboxLimits) -> ExecResult:
        killed: list[CommandStatus] = []
        helpers: set[asyncio.Task[str]] = set()

        def kill(outcome: CommandStatus) -> None:
            if not killed:
                killed.append(outcome)
                helpers.add(asyncio.create_task(self._docker("kill", name)))

        (stdin, our_in), (our_out, stdout), (our_err, stderr) = os.pipe(), os.pipe(), os.pipe()
        feeder, out, err = Feeder(our_in), Collector(our_out), Collector(our_err)
        start = time.perf_counter()
        arguments = [self.config.program, "run", "--interactive", *self._run_arguments(name, limits, command)]
        try:
            process = await asyncio.create_subprocess_exec(*arguments, stdin=stdin, stdout=stdout, stderr=stderr)
        finally:
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        for stream in (out, err):
            stream.start(limits.output_bytes, lambda: kill(CommandStatus.OUTPUT_LIMIT))
        feeder.start(command.stdin)
        timer = asyncio.get_running_loop().call_later(limits.wall_seconds, kill, CommandStatus.TIMEOUT)
        try:
            await process.wait()
            written = out.finish(), err.finish()
            await asyncio.gather(*helpers, return_exceptions=True)
        finally:
            timer.cancel()
            feeder.close()
            out.close()
            err.close()
        seconds = time.perf_counter() - start
        kills, code, error = await self._state(name)
        if error:
            raise SandboxFault(error)
        outcome, value = classify(code, kills, killed)
        return ExecResult(outcome, value, *written, seconds)

    def _run_arguments(
        self, name: str, limits: SandboxLimits, command: Command, network: str | None = None
    ) -> list[str]:
        seconds = max(1, round(limits.cpu_seconds))
        variables = {"HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", **command.env}
        verifies = command.user is SandboxUser.VERIFIER
        network = network or ("none" if verifies else self.network)
        user, shown = USERS[command.user], [f"{folders[0]}:{at}:ro" for at, folders in self.view.layers.items()]
        shown += [f"{volume}:{at}{':ro' if verifies else ''}" for at, volume in self.volumes[SandboxUser.AGENT].items()]
        if verifies:
            shown += [f"{volume}:{at}" for at, volume in self.volumes[SandboxUser.VERIFIER].items()]
        return [
            *("--name", name, "--pull", "never", "--network", network, "--ipc", "private"),
            # a network that is another container's has its name
            *(() if network.startswith("container:") else ("--hostname", "sandbox")),
            *("--log-driver", "none"),  # otherwise the daemon keeps all output on the host's disk
            *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--user", f"{user}:{user}", "--pids-limit", str(limits.processes)),
            *("--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)),
            *("--ulimit", f"cpu={seconds}:{seconds + 1}", "--ulimit", f"fsize={limits.disk_bytes}"),
            *("--ulimit", "core=0", "--ulimit", "nofile=512", "--shm-size", str(limits.disk_bytes)),
            *("--tmpfs", f"/tmp:rw,nosuid,nodev,size={limits.disk_bytes},mode=1777"),
            *(part for one in shown for part in ("--volume", one)),
            *("--workdir", self.locate(command.cwd)),
            *(part for key, value in variables.items() for part in ("--env", f"{key}={value}")),
            *("--entrypoint", "", self.config.image, *command.argv),
        ]  # fmt: skip

    def locate(self, path: str) -> str:
        """Returns a path as a command sees it."""
        relative = path.removeprefix(WORKSPACE).lstrip("/") if f"{path}/".startswith(f"{WORKSPACE}/") else path
        return os.path.join(self.view.workdir, relative) if relative else self.view.workdir

    async def snapshot(self, target: Path) -> None:
        """Copies the work directory out; refuses a tree with links that leave it."""
        await self._unpack(f'{SPARSE}cd "$1" && exec tar -c $holes -f - .', WORKSPACE, target)

    async def stop(self) -> None:
        """Removes the containers and the volume."""
        if self.stopped:
            return
        self.stopped = True
        for kill in self.running.values():
            kill()
        await asyncio.gather(*self.running, return_exceptions=True)
        relays = [("rm", "--force", f"{self.id}-relay")] if self.forward else []
        volumes = [name for volumes in self.volumes.values() for name in volumes.values()]
        removals = [("volume", "rm", "--force", name) for name in volumes]
        for command in (*relays, ("rm", "--force", self.id), *removals):
            with contextlib.suppress(SandboxFault):  # the daemon may be gone, and the sandbox with it
                await self._docker(*command)
        await asyncio.gather(*self.helpers, return_exceptions=True)

    def _check_open(self) -> None:
        if self.stopped:
            raise SandboxError("the sandbox has been stopped")

    async def _docker(self, *arguments: Sequence[str] | str) -> str:
        """Runs the client and returns its output; raises `SandboxFault` with its error message."""
        process = await asyncio.create_subprocess_exec(
            self.config.program, *map(str, arguments),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        if process.returncode:
            raise SandboxFault(f"{self.config.program} {arguments[0]}: {err.decode(errors='replace').strip()}")
        return out.decode()
