"""Attacks by programs that run beside commands: on the memory and time of the caller, and on each other's ends."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from arcforge_core.contracts.sandbox import Command, CommandStatus, ExitStatus, SandboxError, SandboxFault
from arcforge_rl.sandbox.python import python_inside
from support.sandbox_attacks import GIVE_STDOUT, LIMITS, processes_like

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")
PYTHON, _ = python_inside()


def shell(text, *words):
    return Command(("/bin/sh", "-c", text, *words), limits=LIMITS)


def python(source, *words):
    return Command((PYTHON, "-I", "-S", "-c", source, *words), limits=LIMITS)


def mark():
    """A word by which a test finds its own processes."""
    return f"marker-{os.getpid()}-{time.time_ns()}"


async def present(sandbox, path):
    """Waits for a file."""
    while True:
        with contextlib.suppress(SandboxError):
            return await sandbox.read(path)
        await asyncio.sleep(0.02)


async def gone(marker):
    """Waits until no process has the marker; the kernel needs a moment after a kill."""
    async with asyncio.timeout(10):
        while processes_like(marker):
            await asyncio.sleep(0.02)


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_endless_output_that_no_caller_reads(run):
    async def scene():
        process = await run.sandbox.start(shell("yes & yes >&2"))
        assert len(await process.stdout.readexactly(100_000)) == 100_000
        before = resident()
        await asyncio.sleep(1)
        grown = resident() - before
        done = await run.sandbox.exec(shell("echo beside"))
        process.kill()
        end = await process.wait()
        return grown, done.stdout, end, len(await process.stdout.read()), len(await process.stderr.read())

    grown, beside, end, *left = run.wait(scene())
    assert grown < 4 << 20 and max(left) < 1 << 20 < sum(left) * 8
    assert beside == b"beside\n" and end == ExitStatus(CommandStatus.SIGNAL, signal.SIGKILL)


def test_a_pipe_that_was_made_larger_is_still_bounded(run):
    source = """
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
os.set_blocking(1, False)
try:
    while True: os.write(1, bytes(1 << 16))
except BlockingIOError:
    os._exit(3)
"""

    async def scene():
        process = await run.sandbox.start(python(source), 4096)
        await process.stdout.readexactly(1)
        return await process.wait(), len(await process.stdout.read())

    end, left = run.wait(scene())
    assert end.code == 3 and 1 << 16 < left < 2 << 20


def test_closed_pipes(run):
    """A writer sees an error, the program lives, and readers see its end at the latest when it ends."""

    async def scene():
        process = await run.sandbox.start(shell("exec <&- >&- 2>&-; until test -e go; do sleep 0.02; done; exit 4"))
        with pytest.raises(ConnectionError):
            while True:
                process.stdin.write(bytes(1 << 16))
                await process.stdin.drain()
        await run.sandbox.write("go", b"")
        assert (await process.stdout.read(), await process.stderr.read()) == (b"", b"")
        return await process.wait()

    assert run.wait(scene()).code == 4


def test_input_that_the_program_does_not_read(run):
    """The writer waits; the end is not delayed by it."""

    async def scene():
        process = await run.sandbox.start(shell("until test -e go; do sleep 0.02; done"))
        process.stdin.write(bytes(4 << 20))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await process.stdin.drain()
        process.stdin.close()
        await run.sandbox.write("go", b"")
        return await process.wait()

    assert run.wait(scene()).ok


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("began", "w").close()
        while True:
            time.sleep(0.1)
    os._exit(0)
while not os.path.exists("began"):
    time.sleep(0.01)
print("parent", flush=True)
os._exit(int(sys.argv[1]))
"""


def test_a_daemon_does_not_outlive_its_program(run):
    """It holds the pipes: neither the end nor the end of the streams may wait for it."""
    marker = mark()

    async def scene():
        process = await run.sandbox.start(python(DAEMON, "6", marker))
        assert await process.wait() == ExitStatus(CommandStatus.EXIT, 6)
        assert await process.stdout.read() == b"parent\n"
        return processes_like(marker)

    assert run.wait(scene()) == []


TAKE = """
import os, socket, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("meeting")
listener.listen()
connection, _ = listener.accept()
_, [stdout], _, _ = socket.recv_fds(connection, 10, 1)
connection.send(b"!")
while True:
    os.write(stdout, b"forged\\n")
    time.sleep(0.01)
"""


def test_an_end_does_not_wait_for_whom_the_output_was_given(run, backend):
    if backend.views is None:  # no sockets have names here, on which programs could meet
        return

    async def scene():
        taker = await run.sandbox.start(python(TAKE))
        giver = await run.sandbox.start(python(GIVE_STDOUT))
        assert (await giver.wait()).ok
        assert b"mine\n" in await giver.stdout.read()
        assert not taker.stdout.at_eof()
        done = await run.sandbox.exec(shell("echo later"))
        taker.kill()
        await taker.wait()
        return done.stdout

    assert run.wait(scene()) == b"later\n"


def test_everything_is_signalled(run):
    """From one program all that it can reach; another one and the supervisors live."""
    attack = "import os, signal\nfor pid in (1, os.getppid(), -1):\n  try: os.kill(pid, 9)\n  except OSError: pass\n"

    async def scene():
        other = await run.sandbox.start(shell("read line; echo $line"))
        process = await run.sandbox.start(python(attack + "os.kill(os.getpid(), 9)"))
        assert await process.wait() == ExitStatus(CommandStatus.SIGNAL, signal.SIGKILL)
        other.stdin.write(b"alive\n")
        assert await other.stdout.read() == b"alive\n"
        return await other.wait()

    assert run.wait(scene()).ok


def test_a_killed_supervisor_is_a_fault(run):
    """By the host: nothing inside can. The end of the output is not taken for the program's own."""
    marker = mark()

    def parent(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    async def scene():
        process = await run.sandbox.start(shell("echo begun; sleep 60; true", marker))
        assert await process.stdout.readline() == b"begun\n"
        keeper = run.sandbox.client.process.pid
        pid = processes_like(marker)[0]
        while parent(pid) != keeper:
            pid = parent(pid)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxFault):
            await process.wait()
        with pytest.raises(SandboxFault):
            await process.stdout.read()
        await gone(marker)

    run.wait(scene())


def test_a_killed_keeper_is_a_fault(backend, loop):
    marker = mark()

    async def scene():
        async with type(backend)(backend.config) as own:
            sandbox = await own.open(limits=LIMITS)
            process = await sandbox.start(shell("trap '' TERM HUP; echo begun; sleep 60; true", marker))
            assert await process.stdout.readline() == b"begun\n"
            own.client.process.kill()
            for work in (process.wait(), process.stdout.read(), sandbox.start(shell("true"))):
                with pytest.raises(SandboxFault):
                    await work
            process.kill()
            process.send_signal(signal.SIGTERM)
            await gone(marker)

    loop.run_until_complete(asyncio.wait_for(scene(), 30))


@pytest.mark.parametrize("delay", [0, 0.002, 0.01, 0.05])
def test_a_program_that_starts_while_its_sandbox_stops(backend, loop, delay):
    marker = mark()

    async def scene():
        sandbox = await backend.open(limits=LIMITS)
        starting = [asyncio.create_task(sandbox.start(shell("sleep 60; true", marker))) for _ in range(3)]
        await asyncio.sleep(delay)
        await sandbox.stop()
        for result in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(result, SandboxError):
                continue
            assert await result.wait() == ExitStatus(CommandStatus.SIGNAL, signal.SIGKILL)
        await gone(marker)

    loop.run_until_complete(asyncio.wait_for(scene(), 30))


def test_a_start_that_is_cancelled_leaves_no_program(run):
    marker = mark()

    async def scene():
        for delay in (0, 0.001, 0.005, 0.02):
            task = asyncio.create_task(run.sandbox.start(shell("sleep 60; true", marker)))
            await asyncio.sleep(delay)
            if not task.cancel():  # it had started
                (await task).kill()
            elif isinstance(process := (await asyncio.gather(task, return_exceptions=True))[0], BaseException):
                assert isinstance(process, asyncio.CancelledError)
            else:
                process.kill()
        await gone(marker)

    run.wait(scene())


def test_no_copy_is_made_while_a_program_may_write(run, tmp_path):
    async def scene():
        process = await run.sandbox.start(shell("sleep 60"))
        with pytest.raises(SandboxError, match="running"):
            await run.sandbox.snapshot(tmp_path / "copy")
        process.kill()
        await process.wait()
        await run.sandbox.snapshot(tmp_path / "copy")

    run.wait(scene())
    assert (tmp_path / "copy").is_dir()


def test_a_program_takes_its_commands_processes(run, backend):
    """All together they have the limit of the sandbox, where a control group counts."""
    fork = """
import os, time
n = 0
try:
    while n < 40:
        if not os.fork():
            time.sleep(60)
        n += 1
except OSError:
    print(n, flush=True)
time.sleep(60)
"""
    if "pids" not in {name for parent in run.sandbox.client.config["cgroups"] for name in parent[2]}:
        return

    async def scene():
        process = await run.sandbox.start(python(fork))
        taken = int(await process.stdout.readline())
        done = await run.sandbox.exec(python("import os\nos.fork()\nos.fork()"))
        process.kill()
        await process.wait()
        return taken, done, await run.sandbox.exec(python("import os\nos.fork()\nos.fork()"))

    taken, during, after = run.wait(scene())
    assert 20 < taken <= LIMITS.processes
    assert not during.ok and during.outcome is CommandStatus.EXIT, during  # its own doing, no fault of the sandbox
    assert after.ok, after


def test_a_command_with_less_memory_does_not_end_a_program(run):
    small = Command(("/bin/echo", "small"), limits=replace(LIMITS, memory_bytes=64 << 20))

    async def scene():
        process = await run.sandbox.start(python("x = bytearray(120 << 20)\nprint('has it', flush=True)\ninput()"))
        assert await process.stdout.readline() == b"has it\n"
        done = await run.sandbox.exec(small)
        process.stdin.write(b"\n")
        return done, await process.wait()

    done, end = run.wait(scene())
    assert done.stdout == b"small\n" and end.ok


def test_processor_time_is_limited(run):
    command = Command((PYTHON, "-c", "while True: pass"), limits=replace(LIMITS, cpu_seconds=1))

    async def scene():
        return await (await run.sandbox.start(command)).wait()

    assert run.wait(scene()).outcome is CommandStatus.SIGNAL
