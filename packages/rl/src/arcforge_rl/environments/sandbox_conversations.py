"""``environment=sandbox_conversations``: conversation records whose tools run in sandboxes.

A conversation whose tools write or run programs gets its own sandbox at its first call. Calls of read-only tools share
one process, because starting Python costs more than the calls themselves.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.conversation import BadRecord, Conversation
from arcforge_core.contracts.sandbox import ExecResult, SandboxBackend
from arcforge_core.episodes.conversation_tasks import Loaded
from arcforge_core.episodes.conversations import ConversationEnvironment
from arcforge_core.episodes.tools import Use
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.environments import SandboxConversationsConfig
from arcforge_rl.environments.boxed import sandboxed_tools
from arcforge_rl.problems.tools import DESCRIPTIONS, NEED_FILES, READING, Call, many_command, many_results
from arcforge_rl.sandbox.sync import Desk


@functools.cache
def desk_of(sandbox: str) -> Desk:
    """Returns this process's desk for a sandbox backend; its keeper ends with the process."""
    return Desk(registry().get("sandbox", sandbox).load_schema()()).__enter__()


class SandboxConversations(ConversationEnvironment):
    """Runs the tools of `arcforge_rl.problems.tools`.

    Raises:
        ConfigError: this sandbox cannot run programs on this machine.
    """

    def __init__(self, config: SandboxConversationsConfig, loaded: Loaded | None = None) -> None:
        super().__init__(config, loaded)
        self._desk = desk_of(config.sandbox)
        self._reading = _Reading(self._desk)

    def check_tools(self, conversation: Conversation) -> None:
        """Raises BadRecord for unknown tools, and for file tools if the record has no files."""
        for tool in conversation.tools:
            if tool.name not in DESCRIPTIONS:
                raise BadRecord(f"tool {tool.name!r} is unknown; available are {', '.join(DESCRIPTIONS)}")
            if tool.name in NEED_FILES and conversation.files is None:
                raise BadRecord(f"tool {tool.name} needs files, and the record has none; generate it again")

    @asynccontextmanager
    async def tools(self, conversation: Conversation) -> AsyncIterator[Use]:
        """Yields a function that runs calls in a sandbox, opened at the first call."""
        reads_only = all(tool.name in READING for tool in conversation.tools)
        files = conversation.files or {}
        async with sandboxed_tools(lambda: self._desk, files) as use:

            async def called(call: ToolCall) -> str:
                result = await self._reading.ask((call.name, call.arguments, files)) if reads_only else None
                return await use(call) if result is None else result

            yield called


class _Reading:
    """Runs all calls that arrive in one iteration of the event loop in one process."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._waiting: list[tuple[Call, asyncio.Future[str | None]]] = []
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self, call: Call) -> str | None:
        """Returns a call's result, or None if it must be run separately."""
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        entry = call, answer
        self._waiting.append(entry)
        asyncio.get_running_loop().call_soon(self._start)
        try:
            return await answer
        finally:
            if entry in self._waiting:  # cancelled before the batch began
                self._waiting.remove(entry)

    def _start(self) -> None:
        if not self._waiting:
            return
        batch, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._answer(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, batch: list[tuple[Call, asyncio.Future[str | None]]]) -> None:
        try:
            results = await self._run([call for call, _ in batch]) if len(batch) > 1 else None
        except Exception as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for number, (_, answer) in enumerate(batch):
            if not answer.done():  # its episode was cancelled
                answer.set_result(None if results is None else results[number])

    async def _run(self, calls: list[Call]) -> list[str] | None:
        command = many_command(self._desk.python, calls)

        async def run(backend: SandboxBackend) -> ExecResult:
            sandbox = await backend.open()
            try:
                return await sandbox.exec(command)
            finally:
                await sandbox.stop()

        return many_results(await self._desk.do(run))
