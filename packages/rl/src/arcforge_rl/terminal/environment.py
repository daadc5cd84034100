"""``environment=terminal``: an agent works in a sandbox with a shell; a verifier judges its files in a fresh one."""

from __future__ import annotations

import base64
import random
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.contracts.sandbox import Command, Sandbox, SandboxBackend, SandboxFault
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.base import TRIES, EnvironmentBase
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.episodes.tools import converse
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.configs.environments import TerminalConfig
from arcforge_rl.sandbox.sync import shared_desk
from arcforge_rl.terminal.cheating import CHEATS
from arcforge_rl.terminal.harbor import SOLVE, HarborTask, read_task
from arcforge_rl.terminal.judging import WORK, judge, left_by_agent
from arcforge_rl.terminal.settings import unplayable
from arcforge_rl.terminal.table import FAMILIES, drawn_task
from arcforge_rl.terminal.worlds import SOLUTION, World, Worlds

BASH = Tool({"type": "function", "function": {
    "name": "bash", "description": "Runs a command of bash in the work directory. Each call has a shell of its own, "
    "and processes that it starts end with it.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}})  # fmt: skip
SHOWN = 4_000
"""Characters at each end of a result that the agent sees."""
CHUNK = 60_000
"""Characters of one call of the oracle."""


@dataclass(frozen=True)
class TerminalTask(Task):
    """A task as files; the answer is empty, because the verdict is of the work.

    Attributes:
        harbor: the task folder.
        tricks: scripts of bash that must not be paid.
        family: of templates, or the name of the folder.
    """

    harbor: HarborTask
    tricks: tuple[str, ...]
    family: str


class Terminal(EnvironmentBase):
    """Harbor task folders below a path, or tasks that template families draw without end.

    Raises:
        DataError: a folder is not accepted.
        ConfigError: no task is on this side of the split, or no sandbox of this machine can show folders.
    """

    domain = "terminal"
    judges_work = True

    def __init__(self, config: TerminalConfig) -> None:
        super().__init__(config)
        self._heldout = config.split == "heldout"
        self.families = list(config.families or FAMILIES)
        self.folders: list[HarborTask] = []
        if config.path:
            found = read_folders(Path(config.path).expanduser())
            self.folders = [one for one in found if config.whole or self._here(one.name)]
            if not self.folders:
                raise ConfigError("environment.split", config.split, f"none of {len(found)} tasks is there")
            self.num_tasks = len(self.folders)
        elif config.heldout == "family":
            self.families = [one for one in self.families if self._here(one)]
            if not self.families:
                raise ConfigError("environment.split", config.split, "none of these families is there")
        self._worlds = Worlds()

    def _here(self, key: str) -> bool:
        return is_heldout_task(f"terminal/{key}") == self._heldout

    def task(self, index: int) -> Task:
        """Returns a task: a folder, or one that a family draws.

        Raises:
            ConfigError: no drawn task is on this side.
        """
        if self.folders:
            one = self.folders[index % len(self.folders)]
            return TerminalTask(f"terminal/{one.name}", one.instruction, "", one, CHEATS, one.name)
        family = self.families[index % len(self.families)]
        for attempt in range(TRIES):
            number = random.Random(f"{self.config.seed}/{index}/{attempt}").getrandbits(32)
            key = f"{family}/{number}"
            if self.config.heldout == "family" or self._here(key):
                made, tricks = drawn_task(family, number)
                return TerminalTask(f"terminal/{key}", made.instruction, "", made, tricks, family)
        raise ConfigError("environment.split", self.config.split, f"none of {TRIES:,} tasks drawn is on this side")

    def labels_of(self, task: Task) -> Sequence[str]:
        """Returns the family."""
        assert isinstance(task, TerminalTask)
        return (task.family,)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the solver work; the episode holds the folders that it left."""
        assert isinstance(task, TerminalTask)
        desk, left, flaw = shared_desk(), dict[str, bytes](), ""
        world = await desk.do(lambda backend: self._worlds.take(backend, task.harbor))
        try:
            sandbox = await desk.do(world.open)
            try:

                async def use(call: ToolCall) -> str:
                    return await desk.do(lambda _: self._bash(sandbox, world, str(call.arguments["command"])))

                messages = [Message("user", task.prompt)]
                episode = await converse(agents, messages, (BASH,), use, max_calls=self.config.max_calls)
                with agents.away():
                    try:
                        left = await desk.do(lambda _: left_by_agent(sandbox))
                    except DataError as error:
                        flaw = str(error)
            finally:
                await desk.do(lambda _: sandbox.stop())
        finally:
            await desk.do(lambda _: self._worlds.give_back(task.harbor))
        return Episode(episode.messages, episode.reply, episode.finish_reason, {"left": left, "flaw": flaw})

    @reward(timeout=None)
    async def done(self, task: Task, episode: Episode) -> Score:
        """Runs the verifier on what was left, in a fresh sandbox."""
        assert isinstance(task, TerminalTask)
        if flaw := episode.artefacts.get("flaw"):
            return Score(0.0, str(flaw))
        left = episode.artefacts.get("left") or {}
        if WORK not in left:
            return Score(0.0, "nothing was left to be judged")

        async def attempt(backend: SandboxBackend) -> Score:
            world = await self._worlds.take(backend, task.harbor)
            try:
                return (await judge(backend, world, task.harbor, left))[0]
            finally:
                await self._worlds.give_back(task.harbor)

        try:
            return await shared_desk().do(attempt)
        except SandboxFault:
            return await shared_desk().do(attempt)

    @metric(timeout=None)
    def calls(self, task: Task, episode: Episode) -> int:
        """Counts the calls."""
        return sum(len(message.tool_calls or ()) for message in episode.messages)

    async def _bash(self, sandbox: Sandbox, world: World, command: str) -> str:
        limits = world.limits(self.config.command_seconds, self.config.command_seconds)
        words = ("/bin/bash", "-c", command)
        done = await sandbox.exec(Command(words, env=world.env, cwd=world.workdir, limits=limits))
        text = (done.stdout + done.stderr).decode(errors="replace").rstrip("\n")
        if len(text) > 2 * SHOWN:
            text = f"{text[:SHOWN]}\n[{len(text) - 2 * SHOWN:,} characters left out]\n{text[-SHOWN:]}"
        ending = "" if done.ok else f"\n[{done.outcome.value}{'' if done.code is None else f' {done.code}'}]"
        return text + ending

    def oracle(self, task: Task) -> Script:
        """Returns the calls that bring the solution and run it.

        Raises:
            ConfigError: the task has no solution.
        """
        assert isinstance(task, TerminalTask)
        harbor = task.harbor
        if SOLVE not in harbor.solution:
            raise ConfigError("environment.path", harbor.name, "has no solution/solve.sh to play")
        commands = []
        for path, data in harbor.solution.items():
            text, place = base64.b64encode(data).decode(), shlex.quote(f"{SOLUTION}/{path}")
            commands.append(f"mkdir -p {SOLUTION}; mkdir -p $(dirname {place}); : > {place}")
            for start in range(0, len(text), CHUNK):
                commands.append(f"echo {text[start : start + CHUNK]} | base64 -d >> {place}")
        given = harbor.section("solution").get("env", {})
        env = " ".join(f"{name}={shlex.quote(value)}" for name, value in given.items())
        commands.append(f"{env} bash {SOLUTION}/{SOLVE}".strip())
        return [*map(calling, commands), Reply("Done.")]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns attempts to be paid without the work."""
        assert isinstance(task, TerminalTask)
        return [[calling(trick), Reply("Done.")] for trick in task.tricks]


def calling(command: str) -> Reply:
    """Returns a turn that runs a command."""
    return Reply(calls=(ToolCall("bash", {"command": command}),))


def read_folders(folder: Path) -> list[HarborTask]:
    """Returns the tasks of a folder: itself, or its subfolders with a ``task.toml``.

    Raises:
        DataError: there is none, or one is not accepted, or asks for what sandboxes do not offer.
    """
    places = [folder] if (folder / "task.toml").exists() else sorted(folder.glob("*/task.toml"))
    tasks = [read_task(place if place.is_dir() else place.parent) for place in places]
    for task in tasks:
        if reason := unplayable(task.settings):
            raise DataError(f"{folder}: {task.name}: {reason}")
    if not tasks:
        raise DataError(f"{folder} has no task: no folder with a task.toml")
    return tasks
