"""Worlds in which the solution of a task has worked; the time of a verifier there is the normal one."""

from __future__ import annotations

import base64
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from arcforge_core.contracts.sandbox import Command, Sandbox, SandboxBackend
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.terminal.harbor import SOLVE, HarborTask
from arcforge_rl.terminal.judging import judge, left_by_agent
from arcforge_rl.terminal.worlds import SOLUTION, World

CHUNK = 60_000
"""Characters of one call of the oracle."""


def solving(part: HarborTask) -> list[str]:
    """Returns the commands that bring a solution and run it.

    Raises:
        ConfigError: there is none.
    """
    if SOLVE not in part.solution:
        raise ConfigError("environment.path", part.name, "has no solution/solve.sh to play")
    commands = [f"rm -rf {SOLUTION}/*"]
    for path, data in part.solution.items():
        text, place = base64.b64encode(data).decode(), shlex.quote(f"{SOLUTION}/{path}")
        commands.append(f"mkdir -p $(dirname {place}); : > {place}")
        for start in range(0, len(text), CHUNK):
            commands.append(f"echo {text[start : start + CHUNK]} | base64 -d >> {place}")
    env = " ".join(f"{name}={shlex.quote(value)}" for name, value in part.section("solution").get("env", {}).items())
    return [*commands, f"{env} bash {SOLUTION}/{SOLVE}".strip()]


@asynccontextmanager
async def solved(
    backend: SandboxBackend, world: World, parts: Sequence[HarborTask], seconds: float
) -> AsyncIterator[Sandbox]:
    """Opens a fresh sandbox in which the solutions of parts have worked, as the oracle does; untouched without any.

    Args:
        backend: opens it.
        world: of the task.
        parts: in their order.
        seconds: bound of one command.
    """
    sandbox = await world.open(backend)
    limits = world.limits(seconds, seconds)
    try:
        for part in parts:
            for command in solving(part) if SOLVE in part.solution else ():
                words = ("/bin/bash", "-c", command)
                await sandbox.exec(Command(words, env=world.env, cwd=world.workdir, limits=limits))
        yield sandbox
    finally:
        await sandbox.stop()


async def ends_in_time(backend: SandboxBackend, world: World, parts: Sequence[HarborTask], seconds: float) -> bool:
    """Returns whether the verifier of the last part ends in time over the work of the solutions.

    Raises:
        SandboxFault: a sandbox broke.
    """
    async with solved(backend, world, parts, seconds) as sandbox:
        try:
            left = await left_by_agent(sandbox)
        except DataError:  # a solution whose work cannot be judged is no control
            return False
    return await judge(backend, world, parts[-1], left) is not None
