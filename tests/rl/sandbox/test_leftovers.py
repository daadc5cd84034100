"""No process, control group, mount or folder remains, whoever is killed."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arcforge_core.contracts.sandbox import Command, SandboxFault
from arcforge_rl.configs.commands import BubblewrapConfig, LandlockConfig
from arcforge_rl.sandbox.boxes import HIGHEST
from arcforge_rl.sandbox.bubblewrap import Bubblewrap
from arcforge_rl.sandbox.cgroups import PREFIX, find_parents
from arcforge_rl.sandbox.landlock import Landlock
from arcforge_rl.sandbox.system import landlock_abi
from arcforge_rl.sandbox.users import BLOCK, BLOCKS, FIRST
from support.sandbox_attacks import processes_like
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")
BACKENDS = {"bubblewrap": lambda: Bubblewrap(BubblewrapConfig())}
if landlock_abi() >= 6:
    BACKENDS["landlock"] = lambda: Landlock(LandlockConfig())

CALLER = """
import asyncio, sys
from arcforge_rl.configs.commands import BubblewrapConfig, LandlockConfig
from arcforge_rl.sandbox.bubblewrap import Bubblewrap
from arcforge_rl.sandbox.landlock import Landlock
from arcforge_core.contracts.sandbox import Command

async def main():
    backend = Bubblewrap(BubblewrapConfig()) if sys.argv[1] == "bubblewrap" else Landlock(LandlockConfig())
    sandbox = await backend.open()
    await sandbox.prepare()
    print(backend.client.process.pid, flush=True)
    await asyncio.gather(*(sandbox.exec(Command(("/bin/sh", "-c", "sleep 98 & sleep 99", sys.argv[2]))) for _ in "12"))

asyncio.run(main())
"""


def traces(keeper):
    """Everything of a keeper that could be left."""
    groups = [g for parent in find_parents() for g in Path(parent.folder).glob(f"{PREFIX}{keeper}-*")]
    folders = [*Path("/tmp").glob(f"arcforge-landlock-{keeper}-*")]
    return [*groups, *folders, *([keeper] if Path(f"/proc/{keeper}/exe").exists() else [])]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(params=BACKENDS)
def way(request):
    return request.param


@pytest.fixture
def caller(way):
    """A process with two commands running; returns it, its keeper and the commands' marker."""
    marker = f"marker-{os.getpid()}-{time.time_ns()}"
    process = subprocess.Popen([sys.executable, "-c", CALLER, way, marker], stdout=subprocess.PIPE)
    keeper = int(process.stdout.readline())
    wait_until(lambda: len(processes_like(marker)) >= 3)  # the caller and two shells
    yield process, keeper, marker
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_caller_is_killed(caller):
    process, keeper, marker = caller
    assert traces(keeper)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not is_alive(keeper))
    assert not [pid for pid in processes_like(marker) if is_alive(pid)]
    wait_until(lambda: traces(keeper) in ([], [keeper]))


def test_the_keeper_is_killed_and_the_next_one_sweeps(caller, way):
    process, keeper, marker = caller
    os.kill(keeper, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_until(lambda: not [pid for pid in processes_like(marker) if is_alive(pid)])
    backend = BACKENDS[way]()

    async def next_one():
        async with backend:
            await backend.open()

    wait_until(lambda: not Path(f"/proc/{keeper}").exists())
    asyncio.run(next_one())
    assert traces(keeper) == []


def test_a_backend_goes_on_with_a_new_keeper(way):
    async def scene():
        async with BACKENDS[way]() as backend:
            first = await backend.open()
            backend.client.process.kill()
            with pytest.raises(SandboxFault, match="keeper is gone"):
                await first.exec(Command(("/bin/sleep", "5")))
            await first.stop()
            second = await backend.open()
            assert (await second.exec(Command(("/bin/true",)))).ok

    asyncio.run(scene())


def test_a_command_after_the_backend_has_closed(way, tmp_path):
    async def scene():
        async with BACKENDS[way]() as backend:
            sandbox = await backend.open()
        for work in (sandbox.exec(Command(("/bin/true",))), sandbox.snapshot(tmp_path / "new"), sandbox.prepare()):
            with pytest.raises(SandboxFault, match="has been closed"):
                await work
        await sandbox.stop()

    asyncio.run(scene())


def test_after_many_commands_nothing_has_piled_up(way):
    async def scene():
        async with BACKENDS[way]() as backend:
            open_files = []
            for _ in range(3):
                for _ in range(8):
                    sandbox = await backend.open()
                    await sandbox.prepare()
                    assert (await sandbox.exec(Command(("/bin/sh", "-c", "sleep 9 & true")))).ok
                    await sandbox.prepare()
                    await sandbox.stop()
                pid = backend.client.process.pid
                children = [p for p in Path("/proc").glob("[0-9]*/stat") if parent_of(p) == pid]
                open_files.append((len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir("/proc/self/fd")), len(children)))
                mounts = len(re.findall(r" /dev/shm/\d", Path(f"/proc/{pid}/mountinfo").read_text()))
        return open_files, mounts, traces(pid)

    counts, mounts, left = asyncio.run(scene())
    assert counts[0] == counts[1] == counts[2] and counts[0][2] == 0, counts
    assert mounts == 0
    assert left == []


def parent_of(stat):
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def test_a_cancelled_command_is_ended(way):
    async def scene():
        async with BACKENDS[way]() as backend:
            sandbox = await backend.open()
            marker = f"marker-{time.time_ns()}"
            task = asyncio.create_task(sandbox.exec(Command(("/bin/sh", "-c", "sleep 60; true", marker))))
            while not processes_like(marker):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(500):
                if not processes_like(marker):
                    return
                await asyncio.sleep(0.01)
            pytest.fail("it is still there")

    asyncio.run(scene())


def test_starts_that_fail_or_are_cancelled_leave_no_files_open(way):
    async def scene():
        async with BACKENDS[way]() as backend:
            sandbox = await backend.open()
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(5):
                task = asyncio.create_task(sandbox.prepare())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert (await sandbox.exec(Command(("/bin/true",)))).ok
            after_cancelling = len(os.listdir("/proc/self/fd"))
            backend.client.process.kill()
            for _ in range(5):
                with pytest.raises(SandboxFault, match="keeper is gone"):
                    await sandbox.exec(Command(("/bin/true",)))
            return before, after_cancelling, len(os.listdir("/proc/self/fd"))

    before, after_cancelling, at_last = asyncio.run(scene())
    assert before == after_cancelling and at_last <= before


EARLY = """
import asyncio, os, sys
from arcforge_rl.configs.commands import BubblewrapConfig, LandlockConfig
from arcforge_rl.sandbox.bubblewrap import Bubblewrap
from arcforge_rl.sandbox.landlock import Landlock

async def main():
    backend = Bubblewrap(BubblewrapConfig()) if sys.argv[1] == "bubblewrap" else Landlock(LandlockConfig())
    sandboxes = [await backend.open() for _ in range(8)]
    tasks = [asyncio.create_task(sandbox.prepare()) for sandbox in sandboxes]
    await asyncio.sleep(0)
    print(backend.client.process.pid, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def test_the_caller_is_killed_while_sandboxes_are_made(way):
    done = subprocess.run([sys.executable, "-c", EARLY, way], capture_output=True, text=True, check=False)
    keeper = int(done.stdout)
    wait_until(lambda: not is_alive(keeper))
    wait_until(lambda: traces(keeper) in ([], [keeper]))


def test_stopping_while_a_command_is_being_made(way):
    async def scene():
        async with BACKENDS[way]() as backend:
            pid = None
            for _ in range(10):
                sandbox = await backend.open()
                pid = backend.client.process.pid
                task = asyncio.create_task(sandbox.prepare())
                await asyncio.sleep(0)
                await asyncio.wait_for(sandbox.stop(), 10)
                await asyncio.gather(task, return_exceptions=True)
            assert [p for p in Path("/proc").glob("[0-9]*/stat") if parent_of(p) == pid] == []
        return traces(pid)

    assert asyncio.run(scene()) == []


def test_what_waits_for_a_bubblewrap_of_a_dead_keeper_is_ended():
    space = os.stat("/proc/self/ns/pid").st_ino
    names = (f"bwrap-{space}-999999999", f"bwrap-{space}-{os.getpid()}", "bwrap-1-999999999", f"bwrap-{space}")
    processes = [subprocess.Popen([name, "60"], executable="/bin/sleep") for name in names]

    async def scene():
        async with Bubblewrap(BubblewrapConfig()) as backend:
            await backend.open()

    asyncio.run(scene())
    alive = [process.poll() is None for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    assert alive == [False, True, True, True]


def test_commands_have_no_rights_of_the_keepers(way):
    async def scene():
        async with BACKENDS[way]() as backend:
            sandbox = await backend.open()
            marker = f"marker-{time.time_ns()}"
            task = asyncio.create_task(sandbox.exec(Command(("/bin/sh", "-c", "sleep 60; true", marker))))
            while not (found := processes_like(marker)):
                await asyncio.sleep(0.01)
            status = Path(f"/proc/{found[0]}/status").read_text()
            keeper = Path(f"/proc/{backend.client.process.pid}/status").read_text()
            groups = Path(f"/proc/{found[0]}/cgroup").read_text()
            files = {int(fd) for fd in os.listdir(f"/proc/{backend.client.process.pid}/fd")}
            assert files >= set(range(HIGHEST + 1))  # or one of a command's could be moved over another
            task.cancel()
            return [dict(line.split(":", 1) for line in text.splitlines()) for text in (status, keeper)], groups

    groups_before = os.getgroups()
    if os.getuid() == 0:
        os.setgroups([7])
    try:
        (command, keeper), groups = asyncio.run(asyncio.wait_for(scene(), 20))
    finally:
        if os.getuid() == 0:
            os.setgroups(groups_before)
    [user] = set(command["Uid"].split())
    assert FIRST <= int(user) < FIRST + BLOCK * BLOCKS if os.getuid() == 0 else user == str(os.getuid())
    ids = [user] * 4
    assert keeper["Uid"].split() == [str(os.getuid())] * 4
    assert os.getuid() or (command["Gid"].split() == ids and command["Groups"].strip() == "")
    assert int(command["CapPrm"], 16) == int(command["CapEff"], 16) == 0
    assert groups.count(f"/{PREFIX}") == len(find_parents())


def test_a_snapshot_stops_nobody(way, tmp_path):
    async def scene():
        async with BACKENDS[way]() as backend:
            first, second = await backend.open(), await backend.open()
            fill = "for n in 1 2 3 4 5; do head -c 40000000 /dev/zero > f$n; done"
            assert (await first.exec(Command(("/bin/sh", "-c", fill)))).ok
            order = []

            async def note(name, coroutine):
                await coroutine
                order.append(name)

            await second.prepare()
            await asyncio.gather(
                note("snapshot", first.snapshot(tmp_path / "copy")),
                note("its own command", first.exec(Command(("/bin/rm", "f5")))),
                note("another's command", second.exec(Command(("/bin/true",)))),
            )
            task = asyncio.create_task(first.snapshot(tmp_path / "last"))
            await asyncio.sleep(0)
            await first.stop()
            await task
            return order

    assert asyncio.run(scene()) == ["another's command", "snapshot", "its own command"]
    assert [(tmp_path / f"copy/f{n}").stat().st_size for n in range(1, 6)] == [40_000_000] * 5
    assert len(list((tmp_path / "last").iterdir())) == 4
