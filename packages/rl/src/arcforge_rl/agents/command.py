"""``harness=command``: a program of its own, which knows a base URL and a key, on the host or in a sandbox."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from typing import Self

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Episode, EpisodeFailure, Reply
from arcforge_rl.agents.harness import TIMEOUT, Work
from arcforge_rl.agents.places import LONGEST, HostPlace, Place, Running, SandboxPlaces
from arcforge_rl.configs.agents import CommandHarnessConfig

PROMPT_FILE = "TASK.md"


class ProgramCrashed(EpisodeFailure):
    """The program did not exit with 0."""

    def __init__(self, reason: str, episode: Episode) -> None:
        super().__init__("worker", reason)
        self.episode = episode


class CommandHarness:
    """Runs `CommandHarnessConfig.command` once for each task.

    The answer is the program's standard output, or the text of `CommandHarnessConfig.answer_file`.

    Raises:
        ConfigError: sandboxes that can reach the gateway do not work here.
    """

    def __init__(self, config: CommandHarnessConfig) -> None:
        config.check()
        self.config = config
        self._sandboxes = SandboxPlaces(config) if config.place == "sandbox" else None

    async def __aenter__(self) -> Self:
        if self._sandboxes is not None:
            await self._sandboxes.backend.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._sandboxes is not None:
            await self._sandboxes.backend.close()

    async def work(self, work: Work) -> Episode:
        """Runs the program; see `Harness.work`."""
        place: Place = HostPlace() if self._sandboxes is None else await self._sandboxes.open()
        try:
            return await self._work(work, place)
        finally:
            await place.close()

    async def _work(self, work: Work, place: Place) -> Episode:
        base = f"{place.gateway or work.gateway.url}/sessions/{work.session.id}"
        await place.write(PROMPT_FILE, work.task.prompt.encode())
        names = {
            "prompt": work.task.prompt,
            "prompt_file": f"{place.workdir}/{PROMPT_FILE}",
            "base_url": f"{base}/v1",
            "model": work.model,
            "workdir": place.workdir,
        }
        variables = {
            "OPENAI_BASE_URL": f"{base}/v1",
            "OPENAI_API_KEY": work.session.secret,
            "ANTHROPIC_BASE_URL": base,
            "ANTHROPIC_API_KEY": work.session.secret,
        }
        argv = [word.format_map(names) for word in shlex.split(self.config.command)]
        ending = await ended(await place.start(argv, variables), work.seconds)
        path = self.config.answer_file
        reply = Reply(text_of(ending.printed if path is None else await place.read(path)))
        files = {path: text_of(data) for path in self.config.files if (data := await place.read(path)) is not None}
        messages = (Message("user", work.task.prompt), reply.message)
        episode = Episode(messages, reply, TIMEOUT if ending.is_late else "stop", {"files": files})
        if ending.crash and not ending.is_late:
            raise ProgramCrashed(f"{argv[0]} ended with {ending.crash}: {text_of(ending.errors[-500:])}", episode)
        return episode


@dataclass(frozen=True)
class Ending:
    """How a program ended.

    Attributes:
        printed: the beginning of its standard output.
        errors: of its standard error.
        crash: its signal, or its exit code if that is not 0; empty otherwise.
        is_late: whether it was killed because its time was up.
    """

    printed: bytes
    errors: bytes
    crash: str
    is_late: bool


async def ended(process: Running, seconds: float) -> Ending:
    """Waits for a program, and kills it and all that it started when its time is up, or when it has ended."""
    printed, errors = bytearray(), bytearray()
    streams = ((process.stdout, printed), (process.stderr, errors))
    reading = [asyncio.create_task(keep(stream, kept)) for stream, kept in streams]
    crash, limit = "", asyncio.timeout(seconds)
    try:
        async with limit:
            crash = await process.wait()
    except TimeoutError:
        if not limit.expired():
            raise
    finally:
        process.kill()
    if limit.expired():
        await process.wait()
    await asyncio.gather(*reading)
    return Ending(bytes(printed), bytes(errors), crash, limit.expired())


async def keep(stream: asyncio.StreamReader, kept: bytearray) -> None:
    """Reads a stream to its end, and keeps its first `LONGEST` bytes."""
    while part := await stream.read(1 << 16):
        kept += part[: LONGEST - len(kept)]


def text_of(data: bytes | None) -> str:
    """Returns the text of a program's bytes; None is empty."""
    return (data or b"").decode(errors="replace")
