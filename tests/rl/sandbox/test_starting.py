"""Keepers that are not ready in time or are killed before: a fault that is retried, and never one of the task."""

import asyncio
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from arcforge_core.contracts.sandbox import Command, SandboxFault
from arcforge_rl.configs.commands import BubblewrapConfig
from arcforge_rl.sandbox import client
from arcforge_rl.sandbox.bubblewrap import Bubblewrap
from arcforge_rl.sandbox.state import COVERED, STATE
from arcforge_rl.sandbox.sync import shared_desk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")


@pytest.fixture
def keepers(monkeypatch):
    """Processes of keepers; each of the first gets one of `signals` before it is ready."""

    class Keepers(list):
        signals = ()

        def start(self, command, **options):
            process = popen(command, **options)
            if "arcforge_rl.sandbox.supervisor" in command:
                disturbed = len(self) < len(self.signals)
                if disturbed:
                    process.send_signal(self.signals[len(self)])
                monkeypatch.setattr(client, "STARTING", 0.2 if disturbed else 300.0)
                self.append(process)
            return process

    popen, found = subprocess.Popen, Keepers()
    monkeypatch.setattr(client.subprocess, "Popen", found.start)
    return found


async def opened(backend):
    sandbox = await backend.open()
    assert (await sandbox.exec(Command(("/bin/true",)))).ok
    await sandbox.stop()


@pytest.mark.parametrize("disturbance", [signal.SIGSTOP, signal.SIGKILL])
def test_a_keeper_that_is_not_ready_is_replaced(keepers, caplog, disturbance):
    keepers.signals = (disturbance,)

    async def scene():
        async with Bubblewrap(BubblewrapConfig()) as backend:
            await opened(backend)

    asyncio.run(scene())
    assert [process.returncode for process in keepers] == [-signal.SIGKILL, 0]
    assert "it is started once more" in caplog.text


def test_two_that_are_not_ready_are_a_fault_and_the_next_try_begins_afresh(keepers):
    keepers.signals = (signal.SIGSTOP,) * 2

    async def scene():
        async with Bubblewrap(BubblewrapConfig()) as backend:
            with pytest.raises(SandboxFault, match=r"did not start within 0\.2 s"):
                await backend.open()
            assert [process.returncode for process in keepers] == [-signal.SIGKILL] * 2
            await opened(backend)

    asyncio.run(scene())
    assert len(keepers) == 3


@pytest.mark.parametrize("way", ["awaited", "blocking"])
@pytest.mark.parametrize(("breaks", "calls"), [(0, 1), (1, 2), (2, 2)])
def test_work_whose_sandbox_breaks_is_done_once_more(breaks, calls, way):
    made = []

    async def work(backend):
        made.append(backend)
        if len(made) <= breaks:
            raise SandboxFault("gone")
        return "done"

    def done():
        return asyncio.run(shared_desk().retry(work)) if way == "awaited" else shared_desk().wait(work)

    if breaks < calls:
        assert done() == "done"
    else:
        with pytest.raises(SandboxFault, match="gone"):
            done()
    assert len(made) == calls


def test_a_base_and_layers_may_lie_where_the_keeper_has_its_own_files():
    """As with ``TMPDIR=/dev/shm``; the sandbox sees nothing else that lies there."""

    async def scene(place):
        links = place / "links"
        links.symlink_to(place / "base")
        layers = [(place / "layer", "/opt/tool"), (place / "layer", "/usr")]
        async with Bubblewrap(BubblewrapConfig()) as backend:
            sandbox = await backend.open(links, layers=layers)
            command = "cat task /opt/tool/word /usr/word; echo new > task; ls -A /dev/shm; ls COVERED"
            done = await sandbox.exec(Command(("/bin/sh", "-c", command.replace("COVERED", COVERED))))
            await sandbox.snapshot(place / "copy")
            await sandbox.stop()
        return done

    with tempfile.TemporaryDirectory(dir=STATE, prefix="arcforge-test-") as name:
        place = Path(name)
        place.chmod(0o755)
        for folder, file in (("base", "task"), ("layer", "word")):
            (place / folder).mkdir(mode=0o755)
            (place / folder / file).write_text(f"{file}\n")
        done = asyncio.run(scene(place))
        assert done.stdout == b"task\nword\nword\n" and not done.ok, done
        assert b"No such file" in done.stderr and (place / "base" / "task").read_text() == "task\n"
        assert (place / "copy" / "task").read_text() == "new\n"
