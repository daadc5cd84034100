"""A pool of sandboxes that are ready before they are needed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from arcforge_core.contracts.sandbox import Sandbox, SandboxBackend, SandboxFault, SandboxLimits


class WarmPool:
    """Keeps `size` fresh sandboxes. Each is leased once and then stopped, so none runs code of two owners.

    Use it as ``async with pool:``.

    Args:
        backend: creates the sandboxes.
        size: number of ready sandboxes.
        base: as in `SandboxBackend.open`.
        limits: as in `SandboxBackend.open`.
        forward: as in `SandboxBackend.open`.
    """

    def __init__(
        self,
        backend: SandboxBackend,
        size: int,
        base: Path | None = None,
        limits: SandboxLimits | None = None,
        forward: Mapping[int, Path] | None = None,
    ) -> None:
        self.backend, self.size = backend, size
        self.base, self.limits, self.forward = base, limits, forward
        self.fresh: deque[Sandbox] = deque()
        self.making: set[asyncio.Task[None]] = set()

    def refill(self) -> None:
        """Starts creating the missing sandboxes."""
        for _ in range(self.size - len(self.fresh) - len(self.making)):
            task = asyncio.create_task(self._make())
            self.making.add(task)
            task.add_done_callback(self._made)

    async def _open(self) -> Sandbox:
        return await self.backend.open(self.base, self.limits, self.forward)

    async def _make(self) -> None:
        sandbox = await self._open()
        await sandbox.prepare()
        self.fresh.append(sandbox)

    def _made(self, task: asyncio.Task[None]) -> None:
        self.making.discard(task)
        if not task.cancelled():
            task.exception()  # the next lease opens a sandbox itself and meets the same error

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Sandbox]:
        """Leases an unused sandbox and stops it at the end; opens one if none is ready."""
        sandbox = self.fresh.popleft() if self.fresh else await self._open()
        self.refill()
        try:
            yield sandbox
        except SandboxFault:  # the other ready sandboxes come from the same keeper or daemon
            await self._discard()
            raise
        finally:
            await sandbox.stop()

    async def _discard(self) -> None:
        while self.fresh:
            await self.fresh.popleft().stop()

    async def __aenter__(self) -> WarmPool:
        self.refill()
        return self

    async def __aexit__(self, *exception: object) -> None:
        making = list(self.making)
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        await self._discard()
