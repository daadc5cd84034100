"""Sandboxes for environments: asynchronous work with an exclusive sandbox."""

from __future__ import annotations

import functools
import os
from asyncio import Semaphore
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Score
from arcforge_core.contracts.sandbox import (
    Command,
    ExecResult,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxFault,
    SandboxLimits,
)
from arcforge_core.episodes.tools import Use
from arcforge_rl.execution.function_tests import FunctionTest, judge_function
from arcforge_rl.problems.tools import tool_command, tool_result
from arcforge_rl.sandbox.sync import Desk, shared_desk

T = TypeVar("T")
PROGRAMS = min(32, (os.cpu_count() or 1) + 4)
"""Programs judged concurrently; few, because each has a wall-time limit and needs a processor."""


@functools.cache
def _programs() -> Semaphore:
    """Limits the concurrent programs of this process; used only on the desk's event loop."""
    return Semaphore(PROGRAMS)


async def in_sandbox(work: Callable[[Sandbox, str], Awaitable[T]]) -> T:
    """Awaits work with a fresh, temporary sandbox and the path of its interpreter.

    Raises:
        ConfigError: untrusted code cannot be run here.
        SandboxFault: the sandbox broke, repeatedly.
    """
    desk = shared_desk()

    async def attempt(backend: SandboxBackend) -> T:
        async with _programs():
            sandbox = await backend.open()
            try:
                return await work(sandbox, desk.python)
            finally:
                await sandbox.stop()

    return await desk.retry(attempt)


async def judge_in_sandboxes(test: FunctionTest, source: str, limits: SandboxLimits) -> Score:
    """Judges a program's function, each step in a fresh sandbox; see `arcforge_rl.execution.function_tests`.

    Raises:
        ConfigError: untrusted code cannot be run here.
        SandboxFault: a sandbox broke, repeatedly.
    """

    async def run(command: Command) -> ExecResult:
        return await in_sandbox(lambda sandbox, _: sandbox.exec(command))

    steps = judge_function(test, source, shared_desk().python, limits)
    command = next(steps)
    while True:
        try:
            command = steps.send(await run(command))
        except StopIteration as done:
            score: Score = done.value
            return score


@asynccontextmanager
async def sandboxed_tools(open_desk: Callable[[], Desk], files: Mapping[str, str] | None = None) -> AsyncIterator[Use]:
    """Yields a function that runs calls of `arcforge_rl.problems.tools` in one sandbox, opened at the first call.

    Args:
        open_desk: returns the desk of the sandbox.
        files: initial files of the sandbox, text by path.

    Raises:
        ConfigError: untrusted code cannot be run here.
        SandboxFault: the sandbox broke.
    """
    sandboxes: list[Sandbox] = []

    async def called(call: ToolCall) -> str:
        command = tool_command(open_desk().python, call.name, call.arguments)

        async def run_tool(backend: SandboxBackend) -> ExecResult:
            if not sandboxes:
                sandboxes.append(await backend.open())
                for path, text in (files or {}).items():
                    await sandboxes[0].write(path, text.encode())
            return await sandboxes[0].exec(command)

        try:
            return tool_result(await open_desk().do(run_tool))
        except SandboxFault:
            raise
        except SandboxError as error:
            return f"Error: {error}"

    async def stop(backend: SandboxBackend) -> None:
        for sandbox in sandboxes:
            await sandbox.stop()

    try:
        yield called
    finally:
        if sandboxes:
            await open_desk().do(stop)
