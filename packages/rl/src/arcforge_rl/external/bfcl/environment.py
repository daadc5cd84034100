"""``environment=bfcl``: requests of several turns, fulfilled with the functions of BFCL's programs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from arcforge_core.contracts.chat import Message, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.contracts.sandbox import SandboxLimits
from arcforge_core.data.split import is_heldout_task
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.episodes.tools import converse
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.external import BfclConfig
from arcforge_rl.external.base import PackageEnvironment
from arcforge_rl.external.bfcl.cases import MODULE, BfclCase, Call, read_cases
from arcforge_rl.sandbox.mcp_servers import Servers, Service
from arcforge_rl.sandbox.sync import shared_desk

TURNS = "turns"
"""Artefact: the calls of each turn, as [name, arguments]."""
SECONDS = 600.0
"""Wall time of a verdict."""
EXTRA: dict[str, Call] = {
    "GorillaFileSystem": ("mkdir", {"dir_name": "not_asked_for"}),
    "VehicleControlAPI": ("set_navigation", {"destination": "Nowhere"}),
    "TicketAPI": ("ticket_login", {"username": "nobody", "password": "not asked for"}),
    "MessageAPI": ("add_contact", {"user_name": "Nobody"}),
    "TravelAPI": (
        "authenticate_travel",
        {"client_id": "1", "client_secret": "2", "refresh_token": "3", "grant_type": "read_write",
         "user_first_name": "Not", "user_last_name": "Asked"},
    ),
}  # fmt: skip
"""Class of a program -> a call that no task wants and that changes its state."""


@dataclass(frozen=True)
class BfclTask(Task):
    """A conversation to be had; the answer is empty, because the verdict is of the calls."""

    case: BfclCase = field(compare=False)


class Bfcl(PackageEnvironment):
    """The leaderboard's multi-turn tasks. Variants of one task are on one side of the split.

    Attributes:
        excluded: key of a task that cannot be fulfilled -> the reason.

    Raises:
        ConfigError: no task is on this side of the split; see also `PackageEnvironment`.
    """

    domain = "tools"
    module = MODULE
    limits = SandboxLimits(cpu_seconds=120, wall_seconds=SECONDS, output_bytes=16 << 20)

    def __init__(self, config: BfclConfig) -> None:
        super().__init__(config)
        found = read_cases(self.folder, config.categories)
        self.excluded = {one.key: one.flaw for one in found if one.flaw}
        cases = [one for one in found if one.key not in self.excluded]
        self.cases = [one for one in cases if is_heldout_task(f"bfcl/{one.number}") == (config.split == "heldout")]
        if not self.cases:
            raise ConfigError("environment.split", config.split, f"none of {len(cases)} tasks is on this side")
        self.num_tasks: int | None = len(self.cases)

    def task(self, index: int) -> Task:
        """Returns the task of a case."""
        case = self.cases[index % len(self.cases)]
        return BfclTask(f"bfcl/{case.key}", case.says[0], "", case)

    def labels_of(self, task: Task) -> Sequence[str]:
        """Returns the category."""
        return (_case(task).key.removeprefix("multi_turn_").rsplit("_", 1)[0],)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the solver answer each turn of the user; a turn ends with a reply without calls.

        Raises:
            EpisodeFailure: the programs are gone.
        """
        case, turns = _case(task), list[list[Call]]()
        records = {"entry": case.entry, "tools": case.functions}
        messages: list[Message] = []
        episode = None
        async with AsyncExitStack() as stack:
            servers: list[Servers] = []

            async def use(call: ToolCall) -> str:
                if not servers:  # a solver that calls nothing needs no sandbox
                    service = Service(self.program(), "programs", records)
                    world = Servers({"programs": service}, self.layers, python=self.python)
                    servers.append(await stack.enter_async_context(world))
                turns[-1].append((call.name, dict(call.arguments)))
                return await servers[0].use(call)

            for number, said in enumerate(case.says):
                turns.append([])
                messages = [*messages, Message("user", said)]
                limits = {"max_calls": self.config.max_calls, "longest_result": self.config.longest_result}
                episode = await converse(agents, messages, case.tools(number), use, **limits)
                messages = list(episode.messages)
                if episode.finish_reason != "stop":
                    break
        assert episode is not None
        return replace(episode, artefacts={TURNS: turns})

    @reward(timeout=SECONDS)
    async def fulfilled(self, task: Task, episode: Episode) -> Score:
        """Replays the calls in a fresh sandbox and returns the leaderboard's verdict."""
        case, turns = _case(task), episode.artefacts.get(TURNS, [])
        if episode.finish_reason != "stop" or len(turns) != len(case.says):
            return Score(0.0, f"the conversation ended with {episode.finish_reason} in turn {len(turns)}")
        silent = next((n for n, gold in enumerate(case.gold) if gold and not turns[n]), None)
        if silent is not None:  # the leaderboard's own rule, which needs no sandbox
            return Score(0.0, f"no call in turn {silent + 1}")
        found = (await self.judge([(case, turns)]))[0]
        return Score(float(found["valid"]), str(found["reason"]) or "no reason")

    @metric(timeout=None)
    def premature(self, task: Task, episode: Episode) -> int:
        """Counts the calls in turns that lack a function or a value; the leaderboard does not judge them."""
        turns = episode.artefacts.get(TURNS, ())
        return sum(len(turn) for turn, gold in zip(turns, _case(task).gold, strict=False) if not gold)

    async def judge(self, played: Sequence[tuple[BfclCase, Sequence[Sequence[Call]]]]) -> list[dict[str, Any]]:
        """Returns the verdicts ``{"valid", "reason"}`` on calls by turn, of one fresh sandbox.

        Raises:
            SandboxFault: the sandbox or the checker broke, twice.
        """
        jobs = [{"entry": case.entry, "gold": case.gold, "turns": turns} for case, turns in played]
        found: list[dict[str, Any]] = await shared_desk().retry(self.asking(jobs))
        return found

    def oracle(self, task: Task) -> Script:
        """Returns the gold calls."""
        return script(_case(task).calls())

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns words in place of work, work that is missing, too early, too much or cut off, and forged calls."""
        case = _case(task)
        gold = case.calls()
        last = max(n for n, turn in enumerate(gold) if turn)
        done = script(gold)
        forged = ToolCall(gold[last][-1][0], {**gold[last][-1][1], "x=__import__('os').system('id')or": 1})
        scripts: list[Script] = [
            [Reply("Everything is done. reward: 1.0")] * len(gold),
            [Reply("\n".join(turn)) for turn in case.gold],
            script([turn if n != last else [] for n, turn in enumerate(gold)]),
            [*done[:-1], Reply("Done.", finish_reason="length")],
            script([turn if n != last else [("_load_scenario", {"scenario": {}})] for n, turn in enumerate(gold)]),
            [*script(gold[:last]), Reply(calls=(forged,)), *[Reply("Done.")] * (len(gold) - last)],
        ]
        if sum(map(bool, gold)) > 1:
            scripts.append([*script([[call for turn in gold for call in turn]]), *[Reply("Done.")] * (len(gold) - 1)])
        extra = next((EXTRA[kind] for kind in case.entry["involved_classes"] if kind in EXTRA), None)
        if extra is not None:
            scripts.append(script([[*turn, extra] if n == last else turn for n, turn in enumerate(gold)]))
        return scripts


def script(turns: Sequence[Sequence[Call]]) -> list[Reply]:
    """Returns replies that make the calls of each turn, one by one."""
    return [
        reply
        for turn in turns
        for reply in [*(Reply(calls=(ToolCall(name, given),)) for name, given in turn), Reply("Done.")]
    ]


def _case(task: Task) -> BfclCase:
    assert isinstance(task, BfclTask)
    return task.case
