"""The loop that plays tasks: which batches the engine sees, in which order rollouts end, what they record."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.contracts.environment import (
    Agents,
    Environment,
    Episode,
    EpisodeFailure,
    Failure,
    Outcome,
    Reply,
    Task,
)
from arcforge_core.contracts.sandbox import SandboxFault
from arcforge_core.episodes.agent import PolicyAgent, SamplingSetup, TextDialogue
from arcforge_core.episodes.lockstep import EngineLoop, Lockstep
from arcforge_core.episodes.rollout import Rollout, roll_out, take_task
from arcforge_core.episodes.scripted import ScriptedAgent
from arcforge_core.episodes.tools import converse
from arcforge_core.errors import ConfigError
from arcforge_core.testing.small_models import small_tokenizer
from support.scripted_engine import ScriptedEngine

TOKENIZER = small_tokenizer()


class Talk(Environment):
    """Asks as often as the answer says; half of the reward for each turn."""

    domain, num_tasks = "talk", None

    def domain_of(self, task: Task) -> str:
        return self.domain

    async def run(self, task: Task, agents: Agents) -> Episode:
        messages: list[Message] = []
        for turn in range(int(task.answer)):
            messages.append(Message("user", f"{task.key}{turn} "))
            reply = await agents.solver.reply(messages)
            messages.append(reply.message)
        return Episode(tuple(messages), reply)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        await asyncio.sleep(0)
        return Outcome({"reward": int(task.answer) / 2}, {"reward": "said"})


class Watched(ScriptedEngine):
    """Says ``x`` and is cut off there, so that a text continues; notes who was asked together."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER, lambda text, params: "x")
        self.batches: list[str] = []

    def generate(self, prompts: Any, params: Any) -> list[GenerationOutput]:
        found = super().generate(prompts, params)
        self.batches.append(" ".join(text.strip()[-2:] for text in self.rounds[-1]))
        return found


def rolled(engine: Watched, turns: Sequence[int], width: int | None) -> list[Rollout]:
    tasks = [Task("abcdefgh"[n], "", str(of)) for n, of in enumerate(turns)]
    lockstep, setup = Lockstep(engine), SamplingSetup(TextDialogue(TOKENIZER), 9, 1.0, 500)
    agents = (PolicyAgent(lockstep, n, setup, f"seed/{n}") for n in range(len(tasks)))
    return list(roll_out(Talk(), tasks, agents, lockstep, width=width))


def test_all_are_under_way_without_a_width() -> None:
    engine = Watched()
    rolled(engine, [1, 2, 1], None)
    assert engine.batches == ["a0 b0 c0", "b1"]


def test_an_episode_that_ends_makes_room_before_the_engine_is_asked_again() -> None:
    engine = Watched()
    found = rolled(engine, [1, 3, 1, 1, 2], 2)
    assert engine.batches == ["a0 b0", "b1 c0", "b2 d0", "e0", "e1"]
    assert [rollout.number for rollout in found] == [0, 2, 1, 3, 4], "in the order in which they end"
    assert [rollout.outcome.reward for rollout in found] == [0.5, 0.5, 1.5, 0.5, 1.0]


def test_a_row_is_plain_data_with_the_policys_own_tokens() -> None:
    (rollout,) = rolled(Watched(), [2], None)
    row = json.loads(json.dumps(rollout.as_row()))
    (branch,) = row["branches"]
    assert [token for token, mine in zip(branch["ids"], branch["sampled"], strict=True) if mine] == TOKENIZER.encode(
        "xx"
    )
    assert (
        row["rollout"] == "a#0"
        and row["length"] == 2
        and row["messages"][-1]["content"] == "x"
        and row["rewards"] == {"reward": 1.0}
    )
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"] * 2


def test_agents_without_tokens_have_no_branches() -> None:
    agents = [ScriptedAgent([Reply("one")]), ScriptedAgent([Reply("two")])]
    tasks = [Task("a", "", "1"), Task("b", "", "1")]
    found = list(roll_out(Talk(), tasks, agents, Lockstep(None), numbers=[7, 8], width=1))
    assert [(rollout.number, rollout.branches) for rollout in found] == [(7, ()), (8, ())]
    with pytest.raises(ValueError, match="shorter"):
        list(roll_out(Talk(), tasks, agents[:1], Lockstep(None)))


def test_a_loop_that_is_left_ends_what_is_under_way() -> None:
    ended: list[str] = []

    class Slow(Talk):
        async def run(self, task: Task, agents: Agents) -> Episode:
            try:
                await asyncio.sleep(0.01 if task.key == "a" else 60)
            finally:
                ended.append(task.key)
            return await super().run(task, agents)

    agents = [ScriptedAgent([Reply("one")]) for _ in range(2)]
    for rollout in roll_out(Slow(), [Task("a", "", "1"), Task("b", "", "1")], agents, Lockstep(None)):
        assert rollout.number == 0
        break
    del rollout
    assert ended == ["a", "b"]


def test_ctrl_c_is_answered_while_the_engine_computes_and_ends_every_episode() -> None:
    reached: list[str] = []

    class Busy(ScriptedEngine):
        def generate(self, prompts: Any, params: Any) -> list[GenerationOutput]:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)  # the handler runs before this line or in it
            reached.append("the end of the call")
            return super().generate(prompts, params)

    class Ending(Talk):
        async def run(self, task: Task, agents: Agents) -> Episode:
            try:
                return await super().run(task, agents)
            finally:
                reached.append(task.key)

    lockstep = Lockstep(Busy(TOKENIZER, lambda text, params: "x"))
    setup = SamplingSetup(TextDialogue(TOKENIZER), 4, 1.0, 64)
    agents = [PolicyAgent(lockstep, n, setup, f"{n}") for n in range(2)]
    with pytest.raises(KeyboardInterrupt):
        list(roll_out(Ending(), [Task("a", "", "1"), Task("b", "", "1")], agents, lockstep))
    assert sorted(reached) == ["a", "b"]


def test_it_plays_inside_a_running_loop_as_in_a_notebook() -> None:
    """The outer loop's tasks wait meanwhile and continue afterwards, in the task that called."""
    seen: list[str] = []

    async def other() -> None:
        seen.append("other")

    async def cell() -> list[Rollout]:
        waiting = asyncio.create_task(other())
        found = []
        for rollout in roll_out(Talk(), [Task("a", "", "2")], [ScriptedAgent([Reply("one")] * 2)], Lockstep(None)):
            assert asyncio.current_task() is mine and asyncio.get_running_loop() is loop
            found.append(rollout)
        assert seen == []
        await waiting
        return found

    async def main() -> list[Rollout]:
        nonlocal mine, loop
        mine, loop = asyncio.current_task(), asyncio.get_running_loop()
        return await cell()

    mine: Any = None
    loop: Any = None
    assert [len(rollout.episode.messages) for rollout in asyncio.run(main())] == [4]
    assert seen == ["other"]


def test_a_loop_that_ctrl_c_cut_off_where_its_result_was_there_still_ends_its_tasks() -> None:
    loop = EngineLoop()
    result = loop.create_future()

    def cut_off() -> None:
        result.set_result(None)
        raise KeyboardInterrupt

    loop.call_soon(cut_off)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(result)
    assert loop.run_until_complete(asyncio.sleep(0.01, "ended")) == "ended"
    with pytest.raises(RuntimeError, match="of the task"):
        loop.run_until_complete(failing())
    loop.close()


async def failing() -> None:
    raise RuntimeError("of the task")


class Breaking(Talk):
    """Raises as the key says, in the run or in the score."""

    async def run(self, task: Task, agents: Agents) -> Episode:
        if task.key in ERRORS:
            raise ERRORS[task.key]
        return await super().run(task, agents)

    async def score(self, task: Task, episode: Episode) -> Outcome:
        if task.key.removesuffix(" scored") in ERRORS and task.key.endswith(" scored"):
            raise ERRORS[task.key.removesuffix(" scored")]
        return await super().score(task, episode)


ERRORS = {
    "lost": ConnectionResetError("by peer"),
    "broken": SandboxFault("no space left"),
    "gone": EpisodeFailure("worker", "killed"),
}


def test_what_raises_is_a_failure_of_that_rollout_and_the_others_continue() -> None:
    keys = ["a", *ERRORS, "b", *(f"{key} scored" for key in ERRORS)]
    tasks = [Task(key, "", "2") for key in keys]
    agents = [ScriptedAgent([Reply("one"), Reply("two")]) for _ in tasks]
    found = {rollout.task.key: rollout for rollout in roll_out(Breaking(), tasks, agents, Lockstep(None), width=2)}
    assert found.keys() == set(keys)
    assert found["a"].outcome.reward == found["b"].outcome.reward == 1.0
    for suffix in ("", " scored"):
        failures = [found[key + suffix].outcome.failure for key in ERRORS]
        assert failures == [
            Failure("environment", "ConnectionResetError: by peer"),
            Failure("sandbox", "no space left"),
            Failure("worker", "killed"),
        ]
    row = json.loads(json.dumps(found["lost"].as_row()))
    assert row["failure"] == {"kind": "environment", "reason": "ConnectionResetError: by peer"} and not row["rewards"]
    assert found["a"].as_row()["failure"] is None


class Comparing(Talk):
    """Ranks the last replies of a task's episodes by their number."""

    compares = True

    def __init__(self) -> None:
        self.judged: list[int] = []

    async def score_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Outcome]:
        self.judged.append(len(episodes))
        if task.key == "broken":
            return []
        ranked = sorted(float(episode.reply.text) for episode in episodes)
        ranks = [ranked.index(float(episode.reply.text)) / (len(episodes) - 1) for episode in episodes]
        return [Outcome({"reward": rank}, {"reward": "ranked"}) for rank in ranks]


@pytest.mark.parametrize("width", [1, 2, None])
def test_an_environment_that_compares_judges_a_group_when_all_of_it_was_played(width: int | None) -> None:
    environment = Comparing()
    tasks = [Task(key, "", "1") for key in ("a", "a", "a", "b", "b", "b")]
    agents = [ScriptedAgent([Reply(text)]) for text in "315926"]
    ended = roll_out(environment, tasks, agents, Lockstep(None), width=width, group_size=3)
    found = {one.number: one.outcome.reward for one in ended}
    assert environment.judged == [3, 3] and [found[number] for number in range(6)] == [0.5, 0.0, 1.0, 1.0, 0.0, 0.5]


def test_failed_rollouts_are_compared_with_none_and_a_group_without_verdicts_is_a_failure() -> None:
    class Patchy(Comparing):
        async def run(self, task: Task, agents: Agents) -> Episode:
            episode = await super().run(task, agents)
            if episode.reply.text == "0":
                raise EpisodeFailure("sandbox", "gone")
            return episode

    environment = Patchy()
    tasks = [*[Task("a", "", "1")] * 3, *[Task("broken", "", "1")] * 3]
    agents = [ScriptedAgent([Reply(text)]) for text in "301234"]
    ended = roll_out(environment, tasks, agents, Lockstep(None), group_size=3)
    found = {one.number: one.outcome for one in ended}
    assert environment.judged == [2, 3] and [found[0].reward, found[2].reward] == [1.0, 0.0]
    assert found[1].failure == Failure("sandbox", "gone")
    wanted = Failure("environment", "score_group gave 0 outcomes of 3 episodes")
    assert all(found[number].failure == wanted for number in (3, 4, 5))


def test_a_task_that_cannot_be_made_is_a_failure_and_the_others_continue() -> None:
    class Patchy(Talk):
        domain = "patchy"

        def domain_of(self, task: Task) -> str:
            return {"task 0": "first", "task 2": "last"}[task.key]

        def task(self, index: int) -> Task:
            if index == 1:
                raise ConnectionResetError("by peer")
            return Task(f"task {index}", "", "1")

    environment = Patchy()
    tasks = [take_task(environment, index) for index in range(3)]
    agents = [ScriptedAgent([Reply("one")]) for _ in tasks]
    found = {one.task.key: one for one in roll_out(environment, tasks, agents, Lockstep(None))}
    assert found["task 1"].outcome.failure == Failure("environment", "ConnectionResetError: by peer")
    assert [found[key].outcome.failure for key in ("task 0", "task 2")] == [None, None]
    assert {key: one.domain for key, one in found.items()} == {"task 0": "first", "task 1": "patchy", "task 2": "last"}
    json.dumps(found["task 1"].as_row())


def test_an_environment_that_cannot_work_raises_at_its_first_task() -> None:
    class Cannot(Talk):
        def task(self, index: int) -> Task:
            raise ConfigError("environment.path", "x", "no such file")

    with pytest.raises(ConfigError, match="no such file"):
        take_task(Cannot(), 0)


@pytest.mark.parametrize("where", ["run", "score"])
def test_an_environment_that_cannot_work_ends_the_loop(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cannot(*_: object) -> Any:
        raise ConfigError("sandbox", "local", "cannot run here")

    monkeypatch.setattr(Talk, where, cannot)
    with pytest.raises(ConfigError, match="cannot run here"):
        list(roll_out(Talk(), [Task("a", "", "1")], [ScriptedAgent([])], Lockstep(None)))


def test_an_engine_that_aborts_makes_a_failure_and_nothing_is_scored() -> None:
    class Aborting(Watched):
        def generate(self, prompts: Any, params: Any) -> list[GenerationOutput]:
            found = super().generate(prompts, params)
            return [
                replace(output, finish_reason="abort") if text.strip().endswith("b1") else output
                for output, text in zip(found, self.rounds[-1], strict=True)
            ]

    found = sorted(rolled(Aborting(), [2, 2], None), key=lambda rollout: rollout.number)
    assert found[0].outcome.reward == 1.0
    assert found[1].outcome.failure is not None and found[1].outcome.failure.kind == "engine"


class Tooled(Talk):
    """Before its second turn, task ``a`` awaits a tool until all others have ended."""

    def __init__(self, pure: bool = False) -> None:
        self.pure = pure

    async def run(self, task: Task, agents: Agents) -> Episode:
        async def use(call: ToolCall) -> str:
            while not self.pure and task.key == "a" and engine_of(agents).batches[-1:] != ["b3"]:
                await asyncio.sleep(0.001)
            return f"{task.key} "

        tool = Tool({"type": "function", "function": {"name": "look", "parameters": {}}})
        return await converse(agents, [Message("user", f"{task.key} ")], [tool], use, max_calls=9)


def engine_of(agents: Agents) -> Any:
    return agents.solver.lockstep.engine  # type: ignore[attr-defined]


class Calling(PolicyAgent):
    """Calls a tool in the turns that it has left."""

    def __init__(self, calls: int, *given: Any) -> None:
        super().__init__(*given)
        self.left = calls

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Reply:
        asked = [Message("user", f"{messages[0].content.strip()}{sum(m.role == 'assistant' for m in messages)} ")]
        reply = await super().reply(asked)
        self.left -= 1
        return replace(reply, calls=(ToolCall("look", {}),) if self.left >= 0 else (), finish_reason="stop")


def tooled(environment: Tooled, calls: Sequence[int], waits: bool = False) -> list[str]:
    engine = Watched()
    lockstep, setup = Lockstep(engine, waits), SamplingSetup(TextDialogue(TOKENIZER), 9, 1.0, 500)
    agents = [Calling(of, lockstep, n, setup, f"seed/{n}") for n, of in enumerate(calls)]
    tasks = [Task("ab"[n], "", "2") for n in range(len(calls))]
    assert all(rollout.outcome.failure is None for rollout in roll_out(environment, tasks, agents, lockstep))
    return engine.batches


def test_the_engine_does_not_wait_for_a_tool_that_is_awaited() -> None:
    assert tooled(Tooled(), [1, 3]) == ["a0 b0", "b1", "b2", "b3", "a1"]


def test_tools_that_never_yield_change_no_batch() -> None:
    assert tooled(Tooled(pure=True), [1, 3]) == tooled(Tooled(pure=True), [1, 3], waits=True)
    assert tooled(Tooled(pure=True), [1, 3]) == ["a0 b0", "a1 b1", "b2", "b3"]


def test_an_engine_can_be_asked_to_wait_for_tools() -> None:
    class Slow(Tooled):
        async def run(self, task: Task, agents: Agents) -> Episode:
            with agents.away():
                await asyncio.sleep(0.02 if task.key == "a" else 0.0)
            return await super().run(task, agents)

    assert tooled(Slow(pure=True), [1, 1], waits=True) == ["a0 b0", "a1 b1"]


def test_a_timeout_does_not_count_the_seconds_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead[0])

    class Blocking(Watched):
        def generate(self, prompts: Any, params: Any) -> list[GenerationOutput]:
            ahead[0] += 300.0
            return super().generate(prompts, params)

    class Timed(Talk):
        async def score(self, task: Task, episode: Episode) -> Outcome:
            async with asyncio.timeout(200):
                await asyncio.sleep(0.05)
            return await super().score(task, episode)

    lockstep, setup = Lockstep(Blocking()), SamplingSetup(TextDialogue(TOKENIZER), 9, 1.0, 500)
    agents = [PolicyAgent(lockstep, n, setup, f"seed/{n}") for n in range(2)]
    found = list(roll_out(Timed(), [Task("a", "", "1"), Task("b", "", "3")], agents, lockstep))
    assert [rollout.outcome.failure for rollout in found] == [None, None]
