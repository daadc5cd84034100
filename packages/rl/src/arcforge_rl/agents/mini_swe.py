"""``harness=mini_swe``: an agent with a shell and an editor in a sandbox of its own, after mini-swe-agent."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Self

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply
from arcforge_core.contracts.sandbox import Command, Sandbox, SandboxError, SandboxFault
from arcforge_core.episodes.tools import converse
from arcforge_rl.agents.command import text_of
from arcforge_rl.agents.harness import Work
from arcforge_rl.agents.loop import asking_agent, within
from arcforge_rl.agents.places import SandboxPlace, sandboxes_of
from arcforge_rl.configs.agents import MiniSweHarnessConfig

SYSTEM = (
    "You work in a sandbox without network; files that you write in the work directory stay. Use the tools to inspect, "
    "change and test. When the task is done, answer without a call."
)


def tool(name: str, description: str, *parameters: str) -> Tool:
    """Returns a tool whose parameters are texts."""
    schema = {"type": "object", "properties": {p: {"type": "string"} for p in parameters}, "required": [*parameters]}
    return Tool({"type": "function", "function": {"name": name, "description": description, "parameters": schema}})


TOOLS = (
    tool("bash", "Runs a command; each call has a shell of its own.", "command"),
    tool("edit", "Replaces a text that occurs once in a file; an empty one creates the file.", "path", "old", "new"),
)


class MiniSweHarness:
    """Gives the policy `TOOLS` until it answers without a call.

    Raises:
        ConfigError: there are no sandboxes on this machine.
    """

    def __init__(self, config: MiniSweHarnessConfig) -> None:
        self.config = config
        self._sandboxes, self._stack = sandboxes_of(config, config.command_seconds), AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._sandboxes)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    async def work(self, work: Work) -> Episode:
        """Works in a fresh sandbox; see `Harness.work`."""
        sandbox = await self._sandboxes.open()
        try:
            agent, desk = asking_agent(work, self.config), Workbench(sandbox)
            messages = [Message("system", SYSTEM), Message("user", work.task.prompt)]
            most = self.config.max_tool_calls

            async def run() -> Episode:
                return await converse(Agents(agent), messages, TOOLS, desk.use, max_calls=most)

            return await self._graded(await within(work, agent, run), desk)
        finally:
            await sandbox.stop()

    async def _graded(self, episode: Episode, desk: Workbench) -> Episode:
        """Returns the episode with what the verifier gets: the answer, and files."""
        config = self.config
        files = {path: text for path in config.files if (text := await desk.read(path)) is not None}
        reply = episode.reply
        if config.answer_file is not None:
            reply = Reply(await desk.read(config.answer_file) or "")
        return replace(episode, reply=reply, artefacts={"files": files})


class Workbench:
    """The tools in one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self._files = sandbox, SandboxPlace(sandbox, "")

    async def read(self, path: str) -> str | None:
        """Returns the text of a file; None if there is no such one."""
        data = await self._files.read(path)
        return None if data is None else text_of(data)

    async def use(self, call: ToolCall) -> str:
        """Runs a call.

        Raises:
            SandboxFault: the sandbox failed.
        """
        given = {name: str(value) for name, value in call.arguments.items()}
        return await (self._bash(**given) if call.name == "bash" else self._edit(**given))

    async def _bash(self, command: str) -> str:
        result = await self.sandbox.exec(Command(("/bin/bash", "-c", command)))
        ending = "" if result.ok else f"\n[{result.outcome.value}{'' if result.code is None else f' {result.code}'}]"
        return (result.stdout + result.stderr).decode(errors="replace").rstrip("\n") + ending

    async def _edit(self, path: str, old: str, new: str) -> str:
        text = await self.read(path)
        if not old and text is not None:
            return f"Error: {path} exists"
        count = (text or "").count(old)
        if old and count != 1:
            return (
                f"Error: there is no file {path}" if text is None else f"Error: the text occurs {count} times in {path}"
            )
        try:
            await self.sandbox.write(path, (text.replace(old, new) if text else new).encode())
        except SandboxFault:
            raise
        except SandboxError as error:
            return f"Error: {error}"
        return f"{path} is written"
