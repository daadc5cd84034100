"""Worlds whose sandboxes break while they are built."""

import asyncio

import pytest

from arcforge_core.contracts.sandbox import SandboxError, SandboxFault
from arcforge_core.errors import DataError
from arcforge_rl.terminal.harbor import HarborTask
from arcforge_rl.terminal.worlds import Worlds

TASK = HarborTask("small", "Nothing.", {"Dockerfile": b"FROM x\nWORKDIR /app\n"}, {}, {}, {"schema_version": "1.4"})


class Backend:
    """A backend whose first sandboxes raise errors when they are opened."""

    name, views = "flaky", ()

    def __init__(self, *errors):
        self.errors, self.opened = list(errors), 0

    async def open(self, base, limits, **views):
        self.opened += 1
        if self.errors:
            raise self.errors.pop(0)
        return self

    async def snapshot(self, target):
        target.mkdir()

    async def stop(self):
        pass


def test_users_of_one_world_try_again_together():
    async def scene():
        worlds, backend = Worlds(), Backend(SandboxFault("the keeper is late"))

        async def used():
            try:
                return await worlds.take(backend, TASK)
            except SandboxFault:
                return await worlds.take(backend, TASK)

        first, second = await asyncio.gather(used(), used())
        assert first is second and backend.opened == 2 and first.base.is_dir()
        for _ in range(2):
            await worlds.give_back(TASK)
        assert worlds._used == {} and not first.base.exists()

    asyncio.run(scene())


@pytest.mark.parametrize(("error", "kind"), [(SandboxFault("late"), SandboxFault), (SandboxError("full"), DataError)])
def test_only_what_a_retry_cannot_change_is_the_tasks_fault(error, kind):
    worlds = Worlds()
    with pytest.raises(kind):
        asyncio.run(worlds.take(Backend(error), TASK))
    assert worlds._used == {}
