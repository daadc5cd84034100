"""Runs queued commands, each in a fresh sandbox, with limited concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from arcforge_core.contracts.sandbox import ExecResult, Sandbox, SandboxBackend, SandboxFault
from arcforge_rl.execution.jobs import ExecutionJob, JobResult
from arcforge_rl.execution.queue import JobQueue
from arcforge_rl.sandbox.pool import WarmPool


class ExecutionService:
    """A queue and the sandboxes that process it; used as ``async with service:``.

    A program's outcome is its result, whatever it is, and never retried. Sandbox failures (`SandboxFault`) are retried,
    and so is a job during which the service died: a job may be started twice, but has one result.

    Args:
        backend: creates the sandboxes; the caller closes it.
        path: the queue's file.
        concurrency: maximum number of concurrent commands.
        attempts: maximum number of starts of a job.
    """

    def __init__(self, backend: SandboxBackend, path: Path, concurrency: int = 2, attempts: int = 3) -> None:
        self.backend, self.path, self.concurrency, self.max_attempts = backend, path, concurrency, attempts
        self.pool = WarmPool(backend, concurrency)
        self.running: dict[str, asyncio.Task[None]] = {}
        self.news = asyncio.Condition()
        self.work = asyncio.Event()

    async def __aenter__(self) -> ExecutionService:
        self.queue = JobQueue(self.path)
        await self.pool.__aenter__()
        self.dispatcher = asyncio.create_task(self._dispatch())
        self.work.set()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.dispatcher.cancel()
        for task in self.running.values():
            task.cancel()
        await asyncio.gather(self.dispatcher, *self.running.values(), return_exceptions=True)
        await self.pool.__aexit__()
        self.queue.close()

    def submit(self, jobs: Iterable[ExecutionJob]) -> int:
        """Queues jobs and returns the number of new ones; see `JobQueue.submit`."""
        added = self.queue.submit(jobs)
        self.work.set()
        return added

    async def cancel(self, id: str) -> bool:
        """Cancels a job and records that as its result; returns False if it is unknown or already has a result."""
        task = self.running.get(id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        return await self._finish(id, None, "cancelled")

    def progress(self) -> dict[str, int]:
        """Returns the number of jobs that are queued, running and done."""
        return self.queue.progress()

    async def results(self, after: int = 0) -> AsyncIterator[JobResult]:
        """Yields every result once, those from earlier runs of the queue first, until no job is queued or running.

        Args:
            after: `JobResult.number` of the last result that the caller has seen.
        """
        while True:
            async with self.news:
                found = list(self.queue.results(after))
                if not found:
                    if self.queue.is_done():
                        return
                    await self.news.wait()
            for result in found:
                after = result.number
                yield result

    async def _dispatch(self) -> None:
        while True:
            await self.work.wait()
            self.work.clear()
            for job in self.queue.claim(self.concurrency - len(self.running)):
                task = self.running[job.id] = asyncio.create_task(self._run(job))
                task.add_done_callback(lambda _, id=job.id: self._ended(id))  # type: ignore[misc]

    def _ended(self, id: str) -> None:
        del self.running[id]
        self.work.set()

    async def _run(self, job: ExecutionJob) -> None:
        try:
            result = await self._run_in_sandbox(job)
        except SandboxFault as fault:
            if self.queue.attempts(job.id) < self.max_attempts:
                self.queue.put_back(job.id)
            else:
                await self._finish(job.id, None, f"the sandbox failed {self.max_attempts} times: {fault}")
        except Exception as error:  # on any error the job gets its result and the others continue
            await self._finish(job.id, None, f"{type(error).__name__}: {error}")
        else:
            await self._finish(job.id, result)

    async def _run_in_sandbox(self, job: ExecutionJob) -> ExecResult:
        async with self._sandbox(job) as sandbox:
            for path, data in job.files.items():
                await sandbox.write(path, data)
            return await sandbox.exec(job.command)

    def _sandbox(self, job: ExecutionJob) -> AbstractAsyncContextManager[Sandbox]:
        """Returns a fresh sandbox: a ready one, unless the job needs other files or more room for them."""
        limits = job.command.limits
        if job.base is None and (limits is None or limits.disk_bytes == self.backend.limits.disk_bytes):
            return self.pool.lease()
        return self._opened(job)

    @asynccontextmanager
    async def _opened(self, job: ExecutionJob) -> AsyncIterator[Sandbox]:
        sandbox = await self.backend.open(None if job.base is None else Path(job.base), job.command.limits)
        try:
            yield sandbox
        finally:
            await sandbox.stop()

    async def _finish(self, id: str, result: ExecResult | None, error: str | None = None) -> bool:
        written = self.queue.finish(id, result, error)
        async with self.news:
            self.news.notify_all()
        return written
