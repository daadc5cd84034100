"""Attacks by one command on others: of its sandbox, of other sandboxes, and on programs of the host."""

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import signal
import sys

import pytest

from arcforge_core.contracts.sandbox import Command
from arcforge_rl.sandbox.python import python_inside
from support.sandbox_attacks import GIVE_STDOUT, LIMITS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")
PYTHON, _ = python_inside()

TAKE = """
import os, socket, time
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind("meeting")
    listener.listen()
    connection, _ = listener.accept()
_, [stdout], _, _ = socket.recv_fds(connection, 10, 1)
os.write(stdout, b"from another command\\n")
connection.send(b"!")
while True:
    time.sleep(0.01)
    os.write(stdout, b"forged\\n")
"""


def test_a_result_does_not_wait_for_whom_its_stdout_was_given(run, backend):
    """Handed over through a socket in the work directory, to a command that keeps it."""

    async def scene():
        taker, giver = (Command((PYTHON, "-I", "-S", "-c", source), limits=LIMITS) for source in (TAKE, GIVE_STDOUT))
        holder = asyncio.create_task(run.sandbox.exec(taker))
        done = await run.sandbox.exec(giver)
        held = not holder.done()
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)
        return done, held

    if backend.views is None:
        assert b"PermissionError" in run(TAKE).stderr  # no sockets have names here, on which commands could meet
        return
    done, held = run.wait(scene())
    assert done.ok and b"mine\n" in done.stdout
    assert held, "the result came only when the other command had ended"


def test_no_sandbox_waits_until_the_files_of_another_are_deleted(backend, loop, tmp_path, monkeypatch):
    """A program can leave enough files for the deletion to take minutes."""
    rm, free = tmp_path / "rm", tmp_path / "free"
    rm.write_text(f'#!/bin/sh\nwhile ! test -e {free}; do sleep 0.01; done\nexec /bin/rm "$@"\n')
    rm.chmod(0o755)

    async def scene():
        async with type(backend)(backend.config) as own:
            with monkeypatch.context() as patch:
                patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
                first = await own.open(limits=LIMITS)
            second = await own.open(limits=LIMITS)
            try:
                stopping = asyncio.create_task(first.stop())
                async with asyncio.timeout(20):
                    done = await second.exec(Command(("/bin/echo", "not held up"), limits=LIMITS))
                deleted = stopping.done()
            finally:
                free.touch()
            await stopping
            return done.stdout, deleted, os.path.exists(first.work)

    # bubblewrap's files are memory that is unmounted, without any program
    assert loop.run_until_complete(scene()) == (b"not held up\n", backend.views is not None, False)


def test_no_sandbox_waits_until_the_base_of_another_is_there(backend, loop, tmp_path):
    files = 1500 if os.getuid() == 0 else 10_000  # whose owner need not be changed
    for n in range(files):
        (tmp_path / str(n)).touch()

    async def scene():
        """On a busy machine a process may start later than 1,500 files have their owner: one of five is enough."""
        for _ in range(5):
            seen = await once()
            if seen[1]:
                break
        return seen

    async def once():
        sandbox = await backend.open(limits=LIMITS)
        await sandbox.prepare()
        opening = asyncio.create_task(backend.open(tmp_path, LIMITS))
        await asyncio.sleep(0)  # it is asked for first
        done = await sandbox.exec(Command(("/bin/echo", "not held up"), limits=LIMITS))
        first = not opening.done()
        other = await opening
        listing = await other.exec(Command(("/bin/ls",), limits=LIMITS))
        await other.stop()
        await sandbox.stop()
        return done.stdout, first, len(listing.stdout.split())

    assert loop.run_until_complete(asyncio.wait_for(scene(), 60)) == (b"not held up\n", True, files)


LOCK = """
import fcntl, os, struct, time
for path in PATHS:
    file = os.open(path, os.O_RDONLY)
    for take in (
        lambda: fcntl.flock(file, fcntl.LOCK_EX),
        lambda: fcntl.lockf(file, fcntl.LOCK_SH),
        lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK),
    ):
        try:
            take()
        except OSError:
            pass
open("locked", "w").close()
time.sleep(60)
"""


def can_be_locked(path):
    """Whether a program of the host need not wait for a file."""
    file = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # fails where another process has a lease
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    finally:
        os.close(file)


def test_files_of_the_host_cannot_be_locked(backend, loop, tmp_path):
    (tmp_path / "folder").mkdir()
    paths = [tmp_path / "folder/a", tmp_path / "single: with, signs"]
    for path in paths:
        path.write_text("x")
        path.chmod(0o644)
    shown = [str(tmp_path / "folder"), str(paths[1])]
    own = type(backend)(dataclasses.replace(backend.config, read_only=[*backend.config.read_only, *shown]))
    source = LOCK.replace("PATHS", repr([str(path) for path in paths]))

    async def scene():
        async with own:
            sandbox = await own.open(limits=LIMITS)
            command = asyncio.create_task(sandbox.exec(Command((PYTHON, "-I", "-S", "-c", source), limits=LIMITS)))
            while not command.done():
                with contextlib.suppress(Exception):
                    await sandbox.read("locked")
                    break
            assert not command.done(), await command
            return [can_be_locked(path) for path in paths]

    if any("may also be locked" in gap for gap in backend.gaps()):
        return
    assert loop.run_until_complete(asyncio.wait_for(scene(), 60)) == [True, True]


SHARED = {
    "inotify": """
import ctypes
libc = ctypes.CDLL(None)
count = 0
while count < 300 and libc.inotify_init1(0) >= 0:
    count += 1
""",
    "signals": """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
count = 0
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
while count < 2_000_000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN, ctypes.c_void_p(0)) == 0:
    count += 1
""",
}


@pytest.mark.parametrize("what", SHARED)
def test_a_sandbox_uses_up_nothing_that_another_needs(what, backend, loop):
    """Sandboxes of an ordinary user share what the kernel counts per user; those of root have a user each."""
    take = SHARED[what] + "open('taken', 'w').write(str(count))\nimport time\ntime.sleep(60)"

    async def scene():
        first, second = await backend.open(limits=LIMITS), await backend.open(limits=LIMITS)
        greedy = asyncio.create_task(first.exec(Command((PYTHON, "-I", "-S", "-c", take), limits=LIMITS)))
        taken = 0
        while not taken:
            with contextlib.suppress(Exception):
                taken = int(await first.read("taken"))
            assert not greedy.done(), await greedy
        modest = SHARED[what].replace("300", "10").replace("2_000_000", "10") + "print(count)"
        done = await second.exec(Command((PYTHON, "-I", "-S", "-c", modest), limits=LIMITS))
        greedy.cancel()
        await asyncio.gather(greedy, return_exceptions=True)
        for sandbox in (first, second):
            await sandbox.stop()
        return taken, int(done.stdout)

    if os.getuid() == 0:
        taken, left = loop.run_until_complete(asyncio.wait_for(scene(), 60))
        assert taken > 20 and left == 10


def test_everything_is_signalled(run):
    """A program that kills all that it can kills no supervisor, and no command after it."""
    source = "import os, time\nif not os.fork(): time.sleep(60)\nos.kill(-1, 9)\nos.wait()\nos.kill(os.getpid(), 9)"
    done = run(source)
    assert (done.outcome.value, done.code) == ("signal", signal.SIGKILL), done
    assert run.shell("echo again").stdout == b"again\n"
