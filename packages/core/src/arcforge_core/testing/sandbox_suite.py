"""The conformance suite of sandbox backends. Subclass it with the fixture ``make_backend``, of class scope or wider.

A backend that does not work on this machine must report it; the other tests are then skipped with its reason.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.contracts.sandbox import (
    Command,
    CommandStatus,
    ExecResult,
    ExitStatus,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxLimits,
    SandboxProbe,
    SandboxUser,
)

LIMITS = SandboxLimits(
    cpu_seconds=5, wall_seconds=20, memory_bytes=256 << 20, processes=32, disk_bytes=8 << 20, output_bytes=4096
)
SIZE = 4_000_000
"""Bytes of an output that no pipe holds."""
Run = Callable[..., Any]


class SandboxSuite:
    """Conformance of a `SandboxBackend`; it needs a shell, coreutils, tar, and bash if it forwards ports."""

    @pytest.fixture(scope="class")
    def make_backend(self) -> Callable[[], SandboxBackend]:
        """A function without arguments that returns a new backend; a subclass overrides it."""
        raise NotImplementedError("provide the fixture `make_backend` in your subclass")

    @pytest.fixture(scope="class")
    def run(self) -> Iterator[Run]:
        """Runs a coroutine on the loop of the class."""
        loop = asyncio.new_event_loop()

        def run(work: Coroutine[Any, Any, Any]) -> Any:
            return loop.run_until_complete(asyncio.wait_for(work, 60))

        yield run
        loop.close()

    @pytest.fixture(scope="class")
    def backend(self, make_backend: Callable[[], SandboxBackend], run: Run) -> Iterator[SandboxBackend]:
        """A working backend, or a skip."""
        backend = make_backend()
        probe = backend.probe()
        if not probe.ok:
            pytest.skip(f"{backend.name}: {probe.reason}")
        yield backend
        run(backend.close())

    @pytest.fixture
    def sandbox(self, backend: SandboxBackend, run: Run) -> Iterator[Sandbox]:
        """A new sandbox."""
        sandbox = run(backend.open(limits=LIMITS))
        yield sandbox
        run(sandbox.stop())

    @pytest.fixture
    def sh(self, sandbox: Sandbox, run: Run) -> Callable[..., ExecResult]:
        """Runs shell text in the sandbox; further arguments are limits."""

        def sh(text: str, stdin: bytes = b"", **limits: Any) -> ExecResult:
            command = Command(("/bin/sh", "-c", text), stdin, limits=dataclasses.replace(LIMITS, **limits))
            result: ExecResult = run(sandbox.exec(command))
            return result

        return sh

    def test_probe_agrees_with_open(self, make_backend: Callable[[], SandboxBackend], run: Run) -> None:
        """`probe` gives a reason; if it is negative, no sandbox can be created."""
        backend = make_backend()
        probe = backend.probe()
        assert isinstance(probe, SandboxProbe) and probe.reason
        if probe.ok:
            run(run_once(backend))
        else:
            with pytest.raises(SandboxError):
                run(run_once(backend))

    def test_exit_codes_and_streams(self, sh: Callable[..., ExecResult]) -> None:
        """Exit code, standard output and standard error are returned unchanged."""
        done = sh("echo out; echo err >&2; exit 7")
        assert (done.outcome, done.code, done.ok) == (CommandStatus.EXIT, 7, False)
        assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
        assert done.seconds > 0
        assert sh("exit 0").ok

    def test_standard_input(self, sh: Callable[..., ExecResult]) -> None:
        """Any bytes, and more than a pipe holds, are passed; a program need not read them."""
        data = bytes(range(256)) * 2000
        assert sh("wc -c", data).stdout.split() == [b"%d" % len(data)]
        assert sh("exit 3", data).code == 3
        assert sh("cat").stdout == b""

    def test_a_signal(self, sh: Callable[..., ExecResult]) -> None:
        """Death by a signal and an exit code are distinguished."""
        done = sh("kill -SEGV $$")
        assert (done.outcome, done.code) == (CommandStatus.SIGNAL, signal.SIGSEGV)

    def test_a_time_out(self, sh: Callable[..., ExecResult]) -> None:
        """Output written before the time-out is kept; a busy machine may need more time before the first word."""
        for seconds in (0.7, 15.0):
            done = sh("trap '' TERM INT HUP; echo begun; sleep 60", wall_seconds=seconds)
            if done.stdout:
                break
        assert (done.outcome, done.code, done.stdout) == (CommandStatus.TIMEOUT, None, b"begun\n")
        assert seconds <= done.seconds < 50

    def test_too_much_output(self, sh: Callable[..., ExecResult]) -> None:
        """The first bytes are kept and the program is killed; exactly the limit is allowed."""
        done = sh("yes | tr -d '\\n'")
        assert (done.outcome, done.stdout) == (CommandStatus.OUTPUT_LIMIT, b"y" * LIMITS.output_bytes)
        assert sh(f"head -c {LIMITS.output_bytes} /dev/zero").ok

    def test_a_missing_program(self, run: Run, sandbox: Sandbox) -> None:
        """The program fails, not the sandbox."""
        done = run(sandbox.exec(Command(("/no/such/program",))))
        assert done.outcome is CommandStatus.EXIT and done.code in (126, 127)

    def test_variables(self, sandbox: Sandbox, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """The command's variables are set, the caller's are not."""
        monkeypatch.setenv("CALLERS_SECRET", "secret")
        done = run(sandbox.exec(Command(("/usr/bin/env",), env={"MINE": "a b'\"\n$c"})))
        assert b"MINE=a b'\"\n$c\n" in done.stdout
        assert b"CALLERS_SECRET" not in done.stdout

    def test_files_persist_between_commands(self, sh: Callable[..., ExecResult]) -> None:
        """Processes do not outlive their command."""
        assert sh("(while :; do echo x >> grows; sleep 0.01; done) & echo kept > file").ok
        before = sh("cat grows | wc -l; cat file")
        assert before.stdout.endswith(b"kept\n")
        assert sh("cat grows | wc -l; cat file").stdout == before.stdout

    def test_reading_and_writing(self, sandbox: Sandbox, run: Run, sh: Callable[..., ExecResult]) -> None:
        """Bytes are unchanged in both directions; missing folders are created."""
        data = bytes(range(256)) * 300
        run(sandbox.write("new/folder/file", data))
        assert run(sandbox.read("/workspace/new/folder/file")) == data
        assert sh("cat new/folder/file | wc -c").stdout.split() == [b"%d" % len(data)]
        assert run(sandbox.read("new/folder/file", limit=len(data))) == data
        with pytest.raises(SandboxError, match="longer than"):
            run(sandbox.read("new/folder/file", limit=len(data) - 1))

    @pytest.mark.parametrize("plant", ["ln -s /etc/passwd f", "ln -s missing f", "mkfifo f", "mkdir f", "true"])
    def test_unreadable_files(self, sandbox: Sandbox, run: Run, sh: Callable[..., ExecResult], plant: str) -> None:
        """Links, pipes, folders and missing files are rejected without blocking."""
        assert sh(plant).ok
        with pytest.raises(SandboxError):
            run(sandbox.read("f"))

    def test_upload_and_download_of_folders(
        self, sandbox: Sandbox, run: Run, sh: Callable[..., ExecResult], tmp_path: Path
    ) -> None:
        """A folder of the host comes back equal."""
        (tmp_path / "tree/sub").mkdir(parents=True)
        (tmp_path / "tree/sub/file").write_bytes(b"\0data")
        (tmp_path / "tree/link").symlink_to("sub/file")
        run(sandbox.upload(tmp_path / "tree", "copy"))
        assert sh("cat copy/sub/file").stdout == b"\0data"
        run(sandbox.download("copy", tmp_path / "back"))
        assert (tmp_path / "back/copy/link").read_bytes() == b"\0data"
        with pytest.raises(SandboxError):
            run(sandbox.download("missing", tmp_path / "none"))
        assert not (tmp_path / "none").exists()

    def test_later_sandboxes_start_from_a_snapshot(
        self, backend: SandboxBackend, sandbox: Sandbox, run: Run, sh: Callable[..., ExecResult], tmp_path: Path
    ) -> None:
        """Each has its own copy, in which it may change and delete files."""
        assert sh("mkdir d; echo first > d/f; echo other > g; ln -s d/f l").ok
        run(sandbox.snapshot(tmp_path / "snapshot"))

        async def change(text: str) -> ExecResult:
            other = await backend.open(tmp_path / "snapshot", LIMITS)
            done = await other.exec(Command(("/bin/sh", "-c", text), limits=LIMITS))
            await other.stop()
            return done

        changed = run(change("cat l && echo changed > d/f && rm g && rm -r d && mkdir d && ls -A d"))
        assert changed.ok and changed.stdout == b"first\n", changed
        assert run(change("cat d/f g")).stdout == b"first\nother\n"
        assert sh("cat d/f").stdout == b"first\n"

    def test_a_base_that_is_not_a_folder(self, backend: SandboxBackend, run: Run, tmp_path: Path) -> None:
        """It is rejected, and the backend still works afterwards."""
        with pytest.raises(SandboxError, match="is not a directory"):
            run(backend.open(tmp_path / "missing"))

    def test_prepare_has_no_visible_effect(self, sandbox: Sandbox, run: Run, sh: Callable[..., ExecResult]) -> None:
        """A prepared command gets its own input, limits and folder."""
        run(sandbox.prepare())
        assert sh("cat; pwd | wc -l", b"in\n", wall_seconds=15).stdout.split() == [b"in", b"1"]
        assert sh("echo again").stdout == b"again\n"

    def test_sandboxes_are_isolated(self, backend: SandboxBackend, sandbox: Sandbox, run: Run) -> None:
        """A sandbox cannot read another one's files."""
        run(sandbox.write("mine", b"x"))
        other = run(backend.open(limits=LIMITS))
        with pytest.raises(SandboxError):
            run(other.read("mine"))
        run(other.stop())

    def test_a_started_program_talks_beside_commands(
        self, sandbox: Sandbox, run: Run, sh: Callable[..., ExecResult]
    ) -> None:
        """Input and both outputs are streams; results of commands hold nothing of them, and do not wait."""

        async def scene() -> None:
            process = await sandbox.start(sh_command("while read x; do echo out $x; echo err $x >&2; done; exit 5"))
            process.stdin.write(b"1\n")
            assert await process.stdout.readline() == b"out 1\n"
            assert await process.stderr.readline() == b"err 1\n"
            done = await sandbox.exec(sh_command("echo mine"))
            assert (done.stdout, done.stderr) == (b"mine\n", b"")
            process.stdin.write(b"2\n3\n")
            process.stdin.close()
            assert await process.wait() == ExitStatus(CommandStatus.EXIT, 5)
            assert await process.stdout.read() == b"out 2\nout 3\n", "what was written before the end can be read"
            assert await process.stderr.read() == b"err 2\nerr 3\n"

        run(scene())

    def test_several_started_programs(self, sandbox: Sandbox, run: Run) -> None:
        """They share the files, and each has its own end."""

        async def scene() -> None:
            first = await sandbox.start(sh_command("until test -e go; do sleep 0.05; done; cat go"))
            second = await sandbox.start(sh_command("cat; echo data > ready; mv ready go; exit 3"))
            second.stdin.close()
            assert (await second.wait()).code == 3
            assert (await first.wait()).ok and await first.stdout.read() == b"data\n"

        run(scene())

    def test_unread_output_makes_a_program_wait(self, sandbox: Sandbox, run: Run) -> None:
        """It is neither lost nor collected."""

        async def scene() -> None:
            process = await sandbox.start(sh_command(f"head -c {SIZE} /dev/zero; echo x > written; echo end >&2"), 4096)
            assert len(await process.stdout.read(1)) == 1
            await asyncio.sleep(0.5)
            with pytest.raises(SandboxError):
                await sandbox.read("written")
            assert len(await process.stdout.read()) == SIZE - 1
            assert (await process.wait()).ok and await process.stderr.read() == b"end\n"

        run(scene())

    def test_signals_of_a_started_program(self, sandbox: Sandbox, run: Run) -> None:
        """A signal can be handled; one that is ignored changes nothing; `kill` ends it and what it started."""

        async def scene() -> None:
            text = "trap 'echo usr; exit 7' USR1; trap '' TERM; echo begun; while :; do sleep 0.05; done"
            first, second = [await sandbox.start(sh_command(text)) for _ in range(2)]
            for process in (first, second):
                assert await process.stdout.readline() == b"begun\n"
                process.send_signal(signal.SIGTERM)
            first.send_signal(signal.SIGUSR1)
            assert await first.wait() == ExitStatus(CommandStatus.EXIT, 7)
            assert await first.stdout.read() == b"usr\n"
            second.kill()
            assert await second.wait() == ExitStatus(CommandStatus.SIGNAL, signal.SIGKILL)
            for process in (first, second):  # has no effect any more
                process.kill()
                process.send_signal(signal.SIGTERM)
            with pytest.raises(SandboxError, match="signal 0"):
                first.send_signal(0)
            default = await sandbox.start(sh_command("echo begun; exec sleep 60"))
            assert await default.stdout.readline() == b"begun\n"
            default.send_signal(signal.SIGTERM)
            assert await default.wait() == ExitStatus(CommandStatus.SIGNAL, signal.SIGTERM)

        run(scene())

    def test_a_program_that_cannot_be_started(self, sandbox: Sandbox, run: Run) -> None:
        """A missing program ends by itself; a malformed command is rejected."""

        async def scene() -> None:
            process = await sandbox.start(Command(("/no/such/program",)))
            assert (await process.wait()).code in (126, 127)
            with pytest.raises(SandboxError, match="stdin"):
                await sandbox.start(Command(("cat",), stdin=b"x"))

        run(scene())

    def test_stop_ends_started_programs(self, backend: SandboxBackend, run: Run) -> None:
        """They live until then, also where the sandbox was stopped while they were read."""

        async def scene() -> None:
            sandbox = await backend.open(limits=LIMITS)
            process = await sandbox.start(sh_command("trap '' TERM HUP; echo begun; sleep 60"))
            assert await process.stdout.readline() == b"begun\n"
            reading = asyncio.create_task(process.stdout.read())
            await asyncio.sleep(0)
            await sandbox.stop()
            assert await process.wait() == ExitStatus(CommandStatus.SIGNAL, signal.SIGKILL)
            assert await reading == b""
            with pytest.raises(ConnectionError):
                process.stdin.write(b"x")
                await process.stdin.drain()
            with pytest.raises(SandboxError, match="stopped"):
                await sandbox.start(Command(("/bin/true",)))

        run(scene())

    def test_a_verifier_reads_and_cannot_be_reached(self, sandbox: Sandbox, run: Run, tmp_path: Path) -> None:
        """It sees the agent's files and changes none; its own home is hidden, and its processes live apart."""

        async def scene() -> None:
            await sandbox.write("answer", b"42")
            keep = "cat answer && echo secret > $HOME/verdict && cat $HOME/verdict && ! echo 43 > answer"
            done = await sandbox.exec(verifier_command(keep))
            assert done.ok and done.stdout == b"42secret\n", done
            home = (await sandbox.exec(verifier_command("echo $HOME"))).stdout.decode().strip()
            agent = await sandbox.exec(sh_command(f"cat {home}/verdict; ls -A {home}; echo x > {home}/verdict"))
            assert b"secret" not in agent.stdout
            assert (await sandbox.exec(verifier_command("cat $HOME/verdict"))).stdout == b"secret\n"
            assert await sandbox.read(f"{home}/verdict", user=SandboxUser.VERIFIER) == b"secret\n"
            assert await sandbox.read("answer") == b"42"
            left = await sandbox.start(
                sh_command("trap '' TERM HUP; echo begun; while :; do kill -9 -1; sleep 0.02; done")
            )
            assert await left.stdout.readline() == b"begun\n"
            assert (await sandbox.exec(verifier_command("sleep 0.3; echo alive"))).stdout == b"alive\n"
            left.kill()
            await left.wait()

        run(scene())

    def test_folders_and_a_work_directory(self, backend: SandboxBackend, run: Run, tmp_path: Path) -> None:
        """Folders are writable by their user alone, layers by none; a backend without views says so."""
        for name in ("lower/both", "lower/low", "upper/both", "base/file"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(name)

        async def scene() -> None:
            layer = [(tmp_path / "lower", "/opt/tool")]
            if backend.views is None:
                given: dict[str, Any] = {"layers": layer, "folders": ["/app"], "workdir": "/app"}
                for name, value in given.items():
                    views: dict[str, Any] = {name: value}
                    with pytest.raises(SandboxError, match=name):
                        await backend.open(limits=LIMITS, **views)
                return
            sandbox = await backend.open(
                tmp_path / "base", LIMITS, layers=layer, folders=["/app"], verifier_folders=["/logs/verifier"],
                workdir="/testbed",
            )  # fmt: skip
            done = await sandbox.exec(sh_command("pwd; cat file /opt/tool/low; echo 1 > /app/made; ls -A /logs"))
            assert done.stdout.split() == [b"/testbed", b"base/filelower/low"], done
            assert not (await sandbox.exec(sh_command("echo > /opt/tool/low"))).ok
            assert await sandbox.read("/workspace/file") == await sandbox.read("/testbed/file") == b"base/file"
            write = "cat /app/made && echo 1 > /logs/verifier/reward && ! echo 2 > /app/made && ! echo > file"
            done = await sandbox.exec(verifier_command(write))
            assert done.stdout == b"1\n" and done.ok, done
            assert await sandbox.read("/logs/verifier/reward", user=SandboxUser.VERIFIER) == b"1\n"
            with pytest.raises(SandboxError):
                await sandbox.read("/logs/verifier/reward")
            await sandbox.stop()

        run(scene())

    @pytest.mark.parametrize(
        ("views", "reason"),
        [
            ({"folders": ["app"]}, "absolute"),
            ({"folders": ["/app/../etc"]}, "absolute"),
            ({"folders": ["/usr/x"]}, "/usr"),
            ({"folders": ["/app", "/app/x"]}, "/app"),
            ({"workdir": "/tmp"}, "/tmp"),
            ({"layers": [(Path("/missing"), "/opt/x")]}, "not a directory"),
        ],
    )
    def test_views_that_are_rejected(
        self, backend: SandboxBackend, run: Run, views: dict[str, Any], reason: str
    ) -> None:
        """Malformed paths, and such as lie in each other or in the system's."""
        if backend.views is None and reason != "not a directory":
            reason = "|".join([reason, "no file system of its own"])
        with pytest.raises(SandboxError, match=reason):
            run(backend.open(limits=LIMITS, **views))

    def test_layers_over_the_system(self, backend: SandboxBackend, run: Run, tmp_path: Path) -> None:
        """Later ones hide earlier ones, and all of them the system's; a backend that cannot says so."""
        for number in "12":
            folder = tmp_path / number / "bin"
            folder.mkdir(parents=True)
            (folder / "of-a-layer").write_text(f"#!/bin/sh\necho {number}\n")
            (folder / f"of-{number}").write_text("#!/bin/sh\nexec of-a-layer\n")
            for file in folder.iterdir():
                file.chmod(0o755)

        async def scene() -> None:
            layers = [(tmp_path / number, "/usr") for number in "12"]
            if backend.views is None or "/usr" not in backend.views:
                with pytest.raises(SandboxError, match="layers"):
                    await backend.open(limits=LIMITS, layers=layers)
                return
            sandbox = await backend.open(limits=LIMITS, layers=layers)
            assert (await sandbox.exec(sh_command("of-1; of-2 | cat"))).stdout == b"2\n2\n"
            plain = await backend.open(limits=LIMITS)
            assert (await plain.exec(sh_command("of-1"))).code == 127
            await plain.stop()
            await sandbox.stop()

        run(scene())

    def test_a_forwarded_port(self, backend: SandboxBackend, run: Run, tmp_path: Path) -> None:
        """A connection inside reaches the Unix socket, nothing else; a backend without a network says so."""

        async def scene() -> None:
            if not backend.forwards:
                with pytest.raises(SandboxError, match="forward"):
                    await backend.open(limits=LIMITS, forward={8080: tmp_path / "socket"})
                return
            server = await asyncio.start_unix_server(shout, tmp_path / "socket")
            for port, path, reason in ((0, "socket", "port 0"), (80, "missing", "not a Unix socket")):
                with pytest.raises(SandboxError, match=reason):
                    await backend.open(limits=LIMITS, forward={port: tmp_path / path})
            sandbox = await backend.open(limits=LIMITS, forward={8080: tmp_path / "socket"})
            ask = "exec 3<>/dev/tcp/127.0.0.1/{} && echo $0 >&3 && cat <&3"
            process = await sandbox.start(Command(("bash", "-c", ask.format(8080), "started")))
            done = await sandbox.exec(Command(("bash", "-c", ask.format(8080), "run")))
            assert (done.stdout, await process.stdout.read()) == (b"RUN\n", b"STARTED\n"), done
            assert not (await sandbox.exec(Command(("bash", "-c", ask.format(8081), "x")))).ok
            await sandbox.stop()
            server.close()

        run(scene())

    def test_stop(self, backend: SandboxBackend, run: Run) -> None:
        """It can be called twice, and later commands fail."""
        sandbox = run(backend.open(limits=LIMITS))
        run(sandbox.stop())
        run(sandbox.stop())
        for work in (sandbox.exec(Command(("/bin/true",))), sandbox.read("f"), sandbox.prepare()):
            with pytest.raises(SandboxError, match="stopped"):
                run(work)


def sh_command(text: str) -> Command:
    """Returns shell text as a command."""
    return Command(("/bin/sh", "-c", text), limits=LIMITS)


def verifier_command(text: str) -> Command:
    """Returns shell text as a command of the verifier."""
    return Command(("/bin/sh", "-c", text), limits=LIMITS, user=SandboxUser.VERIFIER)


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers a line in capitals."""
    writer.write((await reader.readline()).upper())
    writer.close()


async def run_once(backend: SandboxBackend) -> None:
    """Runs one command in one sandbox."""
    async with backend:
        sandbox = await backend.open()
        assert (await sandbox.exec(Command(("/bin/sh", "-c", "echo ok")))).stdout == b"ok\n"
