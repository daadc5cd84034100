"""``environment=terminal``: an agent works in a sandbox with a shell; a verifier judges its files in a fresh one."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import (
    Agents,
    Episode,
    EpisodeFailure,
    NoVerdict,
    Reply,
    Score,
    Script,
    Task,
)
from arcforge_core.contracts.sandbox import Command, Sandbox, SandboxBackend
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.base import first_here
from arcforge_core.episodes.rewards import reward
from arcforge_core.episodes.tools import ToolEnvironment, converse, ends_of
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.configs.environments import TerminalConfig
from arcforge_rl.execution.lateness import verdict_in_time
from arcforge_rl.sandbox.sync import shared_desk
from arcforge_rl.terminal.cheating import CHEATS
from arcforge_rl.terminal.control import ends_in_time, solved, solving
from arcforge_rl.terminal.drafts import OURS
from arcforge_rl.terminal.harbor import HarborTask, read_task
from arcforge_rl.terminal.judging import WORK, Trees, judge, left_by_agent
from arcforge_rl.terminal.settings import unplayable
from arcforge_rl.terminal.table import FAMILIES, drawn_task
from arcforge_rl.terminal.worlds import World, Worlds

if TYPE_CHECKING:
    from arcforge_rl.terminal.session import TerminalSession

T = TypeVar("T")
WAIT = 5.0
"""Seconds that a call of the session waits for output if it does not say."""
BASH = Tool({"type": "function", "function": {
    "name": "bash", "description": "Runs a command of bash in the work directory. Each call has a shell of its own, "
    "and processes that it starts end with it.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}})  # fmt: skip
SHOWN = 4_000
"""Characters at each end of a result that the agent sees."""
LATE = "the tests do not end in time over the agent's files, and do over those of the solution"


@dataclass(frozen=True)
class TerminalTask(Task):
    """A task as files; the answer is empty, because the verdict is of the work.

    Attributes:
        harbor: the task folder.
        tricks: scripts of bash that must not be paid.
        family: of templates or of its metadata, or the name of the folder.
    """

    harbor: HarborTask
    tricks: tuple[str, ...]
    family: str


class Terminal(ToolEnvironment):
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
            self.folders = [one for one in found if config.whole or self._here(group_of(one))]
            if not self.folders:
                raise ConfigError("environment.split", config.split, f"none of {len(found)} tasks is there")
            self.num_tasks = len(self.folders)
        elif config.heldout == "family":
            self.families = [one for one in self.families if self._here(one)]
            if not self.families:
                raise ConfigError("environment.split", config.split, "none of these families is there")
        self._worlds = Worlds()
        self._session = "session" in config.tools
        if self._session and find_spec("pyte") is None:
            raise ConfigError("environment.tools", "session", "needs pyte: pip install 'arcforge-rl[terminal]'")

    def _here(self, key: str) -> bool:
        return is_heldout_task(f"terminal/{key}") == self._heldout

    def task(self, index: int) -> Task:
        """Returns a task: a folder, or one that a family draws.

        Raises:
            ConfigError: no drawn task is on this side.
        """
        if self.folders:
            return task_in(self.folders[index % len(self.folders)])
        family = self.families[index % len(self.families)]

        def draw(source: random.Random) -> tuple[str, int]:
            number = source.getrandbits(32)
            return f"terminal/{family if self.config.heldout == 'family' else f'{family}/{number}'}", number

        number = first_here(self.config, index, draw)
        made, tricks = drawn_task(family, number)
        return TerminalTask(f"terminal/{family}/{number}", made.instruction, "", made, tricks, family)

    def labels_of(self, task: Task) -> Sequence[str]:
        """Returns the family."""
        assert isinstance(task, TerminalTask)
        return (task.family,)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the solver work; the episode holds the folders that it left, or the scores of the steps."""
        assert isinstance(task, TerminalTask)
        desk = shared_desk()
        world = await desk.do(lambda backend: self._worlds.take(backend, task.harbor))
        try:
            sandbox = await desk.do(world.open)
            try:
                await self._healthy(sandbox, world, task.harbor.section("environment"))
                return await self._work(task.harbor, agents, sandbox, world)
            finally:
                await desk.do(lambda _: sandbox.stop())
        finally:
            await desk.do(lambda _: self._worlds.give_back(task.harbor))

    async def _work(self, harbor: HarborTask, agents: Agents, sandbox: Sandbox, world: World) -> Episode:
        desk, scores = shared_desk(), list[dict[str, Any]]()
        messages: list[Message] = []

        session = self._opened(sandbox, world)
        tools = [BASH] if "bash" in self.config.tools else []
        if session is not None:
            tools.append(session.tool)

        async def use(call: ToolCall) -> str:
            given = call.arguments
            if call.name == "bash" or session is None:
                return await desk.do(lambda _: self._bash(sandbox, world, str(given["command"])))
            wait = given.get("wait", WAIT)
            if isinstance(wait, bool) or not isinstance(wait, int | float) or not math.isfinite(wait):
                return "Error: wait must be a number of seconds"
            return await desk.do(lambda _: session.press(str(given["keys"]), wait))

        parts = harbor.parts()
        for number, part in enumerate(parts):
            if not await self._ready(sandbox, world, harbor, number):
                break
            used = sum(len(message.tool_calls or ()) for message in messages)
            messages.append(Message("user", part.instruction))
            episode = await converse(agents, messages, tools, use, max_calls=self.config.max_calls - used)
            messages = list(episode.messages)
            with agents.away():
                if session is not None:
                    await desk.do(lambda _: session.close())
                try:
                    left = await desk.do(lambda _: left_by_agent(sandbox))
                except DataError as error:
                    return _with(episode, left={}, flaw=str(error))
                if not harbor.steps:
                    return _with(episode, left=left, flaw="")
                try:
                    score, rewards = await self._judged(harbor, parts[: number + 1], left)
                except NoVerdict:
                    score, rewards = await self._judged(harbor, parts[: number + 1], left)
            scores.append({"step": part.name, "reward": score.value, "reason": score.reason})
            wanted = harbor.settings["steps"][len(scores) - 1].get("min_reward")
            if episode.finish_reason != "stop" or not reached(wanted, score.value, rewards):
                break
        return _with(episode, steps=scores)

    def _opened(self, sandbox: Sandbox, world: World) -> TerminalSession | None:
        if not self._session:
            return None
        from arcforge_rl.terminal.session import TerminalSession

        return TerminalSession(sandbox, world, shared_desk().python)

    async def _healthy(self, sandbox: Sandbox, world: World, settings: Mapping[str, Any]) -> None:
        if check := settings.get("healthcheck"):
            await shared_desk().do(lambda _: world.wait_until_healthy(sandbox, check))

    async def _ready(self, sandbox: Sandbox, world: World, harbor: HarborTask, number: int) -> bool:
        """Returns whether the health check of a step passes; False if the agent's work on steps before breaks it.

        Raises:
            EpisodeFailure: it does not pass where the agent has not worked either.
        """
        parts = harbor.parts()
        settings = parts[number].settings
        try:
            await self._healthy(sandbox, world, settings)
        except EpisodeFailure:
            if not number:
                raise
        else:
            return True

        async def control(backend: SandboxBackend) -> None:
            async with solved(backend, world, parts[:number], self.config.command_seconds) as fresh:
                await world.wait_until_healthy(fresh, settings["healthcheck"])

        await shared_desk().do(control)
        return False

    async def _judged(
        self, harbor: HarborTask, parts: Sequence[HarborTask], left: Trees
    ) -> tuple[Score, dict[str, float]]:
        """Returns the verdict on the last of some parts; work over which its tests do not end in time is wrong.

        Raises:
            NoVerdict: they do not end over the solution's work either.
        """
        part, seconds = parts[-1], self.config.command_seconds

        async def work() -> tuple[Score, dict[str, float]] | None:
            return await self._in_world(harbor, lambda backend, world: judge(backend, world, part, left))

        async def control() -> bool:
            return await self._in_world(harbor, lambda backend, world: ends_in_time(backend, world, parts, seconds))

        return await verdict_in_time(work, control, f"the tests of {part.name}") or (Score(0.0, LATE), {})

    async def _in_world(self, harbor: HarborTask, do: Callable[[SandboxBackend, World], Awaitable[T]]) -> T:
        """Does something with a task's world; once more if a sandbox broke."""

        async def attempt(backend: SandboxBackend) -> T:
            world = await self._worlds.take(backend, harbor)
            try:
                return await do(backend, world)
            finally:
                await self._worlds.give_back(harbor)

        return await shared_desk().retry(attempt)

    @reward(timeout=None)
    async def done(self, task: Task, episode: Episode) -> Score:
        """Runs the verifier on what was left, in a fresh sandbox."""
        assert isinstance(task, TerminalTask)
        if flaw := episode.artefacts.get("flaw"):
            return Score(0.0, str(flaw))
        if "steps" in episode.artefacts:
            return over_steps(task.harbor, episode.artefacts["steps"])
        left = episode.artefacts.get("left") or {}
        if WORK not in left:
            return Score(0.0, "nothing was left to be judged")
        return (await self._judged(task.harbor, [task.harbor], left))[0]

    async def _bash(self, sandbox: Sandbox, world: World, command: str) -> str:
        limits = world.limits(self.config.command_seconds, self.config.command_seconds)
        words = ("/bin/bash", "-c", command)
        done = await sandbox.exec(Command(words, env=world.env, cwd=world.workdir, limits=limits))
        text = ends_of((done.stdout + done.stderr).decode(errors="replace").rstrip("\n"), 2 * SHOWN)
        ending = "" if done.ok else f"\n[{done.outcome.value}{'' if done.code is None else f' {done.code}'}]"
        return text + ending

    def oracle(self, task: Task) -> Script:
        """Returns the calls that bring the solution and run it.

        Raises:
            ConfigError: the task has no solution.
        """
        assert isinstance(task, TerminalTask)
        return [reply for part in task.harbor.parts() for reply in [*map(calling, solving(part)), Reply("Done.")]]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns attempts to be paid without the work."""
        assert isinstance(task, TerminalTask)
        return [[calling(trick), Reply("Done.")] for trick in task.tricks]


def ours_of(harbor: HarborTask) -> Mapping[str, Any]:
    """Returns our entry in a task's metadata: family, group and cheats; empty where there is none."""
    found = harbor.section("metadata").get(OURS)
    return found if isinstance(found, Mapping) else {}


def group_of(harbor: HarborTask) -> str:
    """Returns what tasks on one side of the split have in common: the group of the metadata, else the name."""
    return str(ours_of(harbor).get("group", harbor.name))


def task_in(harbor: HarborTask) -> TerminalTask:
    """Returns the task of a folder, with the cheats that its metadata hold, and those that fit every task."""
    ours = ours_of(harbor)
    listed = ours.get("cheats")
    cheats = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    instruction, family = harbor.parts()[0].instruction, str(ours.get("family", harbor.name))
    return TerminalTask(f"terminal/{harbor.name}", instruction, "", harbor, (*cheats, *CHEATS), family)


def reached(wanted: float | Mapping[str, float] | None, value: float, rewards: Mapping[str, float]) -> bool:
    """Returns whether a step's rewards permit the next one; a reward that is not there is none."""
    if isinstance(wanted, Mapping):
        return all(rewards.get(name, -math.inf) >= least for name, least in wanted.items())
    return wanted is None or value >= wanted


def over_steps(task: HarborTask, scores: Sequence[Mapping[str, Any]]) -> Score:
    """Returns the score of a task with steps: of the last one, or the mean; steps that were not reached count as 0."""
    values = [float(one["reward"]) for one in scores] + [0.0] * (len(task.steps) - len(scores))
    final = task.settings.get("multi_step_reward_strategy") == "final"
    reasons = [f"{one['step'].split('/')[-1]}: {one['reward']:g} ({one['reason']})" for one in scores]
    return Score(values[-1] if final else sum(values) / len(values), "; ".join(reasons)[:400])


def _with(episode: Episode, **artefacts: Any) -> Episode:
    return replace(episode, artefacts=artefacts)


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
