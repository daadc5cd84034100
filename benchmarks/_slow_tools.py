"""The task of ``benchmarks/async_rl.py``: a conversation with a calculator, and tools that take their time.

`register` adds two environments to this process: ``errands``, several questions in one conversation, each worked out
with the calculator; and ``slow_errands``, where every call takes as long as a log-normal draw says.
"""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.config.schema import EnvironmentConfig, check_at_least, check_minimums
from arcforge_core.contracts.chat import ChatOptions, Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.episodes.base import GeneratedEnvironment
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.episodes.tools import converse
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.registry import Component
from arcforge_rl.environments.answers import judge_number, rational
from arcforge_rl.problems.dialogues import long_expression
from arcforge_rl.problems.toolbox import calculator
from arcforge_rl.problems.tools import definition

CALCULATOR = [Tool(definition("calculator"))]
LONGEST_RESULT = 200


@dataclass
class ErrandsConfig(EnvironmentConfig):
    """Questions about long expressions, one after the other in a conversation."""

    name: str = "errands"
    questions: int = 3
    """Questions of a rollout; each is a turn that calls the calculator and a turn that answers."""
    below: int = 20_000
    """Numbers are from 100 to under this; the demo's model was fine-tuned on up to 9,999."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimums(self, "environment", questions=1, below=1000, seed=0)


@dataclass(frozen=True)
class Errand(Task):
    """Questions with their expressions and answers, in order."""

    questions: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()


class Errands(GeneratedEnvironment):
    """The reward is the share of questions that are answered right; a turn without an end ends the conversation."""

    domain = "tools"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a task; the operands of its first question decide its side."""
        drawn = [long_expression(draw, self.config.below) for _ in range(self.config.questions)]
        operands, expressions, questions = zip(*drawn, strict=True)
        answers = tuple(calculator(expression) for expression in expressions)
        name = "errand/" + "; ".join(questions)
        return operands[0], Errand(name, questions[0], answers[-1], questions, expressions, answers)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Asks one question after the other; the calculator takes four calls at a question."""
        assert isinstance(task, Errand)
        episode = Episode((), Reply())
        for question in task.questions:
            begun = [*episode.messages, Message("user", question)]
            episode = await converse(agents, begun, CALCULATOR, calculate, max_calls=4, longest_result=LONGEST_RESULT)
            if episode.finish_reason != "stop":
                break
        return episode

    @reward(timeout=None)
    def correct(self, task: Task, episode: Episode) -> Score:
        """Compares the last reply to each question with its answer."""
        assert isinstance(task, Errand)
        replies: list[Reply] = []
        for message in episode.messages:
            if message.role == "user":
                replies.append(Reply(finish_reason="length"))
            elif message.role == "assistant":
                replies[-1] = Reply(message.content)
        if episode.finish_reason != "stop":
            replies[-1] = Reply(finish_reason="length")
        numbers = [rational(answer) for answer in task.answers]
        rights = [judge_number(n, one).value for n, one in zip(numbers, replies, strict=False) if n is not None]
        return Score(sum(rights) / len(task.questions), f"{sum(rights):.0f} of {len(task.questions)} are right")

    @metric(timeout=None)
    def calls(self, task: Task, episode: Episode) -> Score:
        """Counts the calls."""
        count = sum(message.role == "tool" for message in episode.messages)
        return Score(float(count), f"{count} calls")

    def oracle(self, task: Task) -> Script:
        """Returns a call and an answer for each question."""
        assert isinstance(task, Errand)
        pairs = zip(task.expressions, task.answers, strict=True)
        return [
            reply
            for expression, answer in pairs
            for reply in (Reply(calls=(ToolCall("calculator", {"expression": expression}),)), Reply(answer))
        ]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns calls without answers, and the expressions instead of their values."""
        assert isinstance(task, Errand)
        return [[Reply(expression) for expression in task.expressions], [Reply("") for _ in task.questions]]


async def calculate(call: ToolCall) -> str:
    """Returns what the calculator of the fine-tuning data gives, computed in this process."""
    try:
        return calculator(str(call.arguments["expression"]))
    except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError) as error:
        return f"Error: {error}"


@dataclass
class SlowErrandsConfig(ErrandsConfig):
    """The same with tool calls that take their time."""

    name: str = "slow_errands"
    median: float = 1.0
    """Median seconds of a call."""
    sigma: float = 1.0
    """Standard deviation of the latency's logarithm."""
    longest: float = 30.0
    """Upper limit of a call."""
    scale: float = 1.0
    """Divides all latencies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("median", "sigma", "longest"):
            check_at_least(f"environment.{name}", getattr(self, name), 0.0)
        if not self.scale > 0:
            raise ConfigError("environment.scale", self.scale, "must be above 0")


class SlowErrands(Errands):
    """Errands whose calls are slow: the policy reads a result only when the call's time is over.

    The latency of a call depends on the environment's `seed`, on the rollout's name (run's seed, step, number: so task
    and sample) and on the call's number in the rollout alone: all schedules meet the same.
    """

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Plays the task with a solver that waits."""
        return await super().run(task, Agents(Patient(agents, task.key, self.config), away=agents.away))


class Patient:
    """A solver that waits for the results of its calls before it continues."""

    def __init__(self, agents: Agents, task: str, config: SlowErrandsConfig) -> None:
        self.agents, self.config, self.calls = agents, config, 0
        self.name = getattr(agents.solver, "seed", task)

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Waits as long as the calls whose results are new take, then asks."""
        calls = sum(message.role == "tool" for message in messages)
        seconds = sum(latency(self.config, self.name, number) for number in range(self.calls, calls))
        self.calls = calls
        if seconds:
            with self.agents.away():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(seconds), clock()))
        return await self.agents.solver.reply(messages, tools, options)


def latency(config: SlowErrandsConfig, rollout: str, call: int) -> float:
    """Returns the seconds of a call of a rollout."""
    draw = random.Random(f"{config.seed}/{rollout}/{call}").lognormvariate(0.0, config.sigma)
    return min(config.longest, config.median * draw) / config.scale


@functools.cache
def clock() -> asyncio.AbstractEventLoop:
    """Returns a loop in a thread of its own: a tool's time passes while an engine blocks the loop that awaits it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="slow-tools", daemon=True).start()
    return loop


def register() -> None:
    """Adds both environments to this process, before its first configuration is composed."""
    for name, target, summary in (
        ("errands", "Errands", "Questions for a calculator in one conversation"),
        ("slow_errands", "SlowErrands", "The same with slow calls"),
    ):
        path = f"{__name__}:{target}"
        registry().register(Component("environment", name, path, f"{path}Config", summary, "benchmarks", "benchmarks"))
