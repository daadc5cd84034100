"""Mathematics with tools: arithmetic on long numbers, and lists for a few lines of Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.episodes.base import GeneratedEnvironment
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.episodes.tools import converse
from arcforge_rl.environments.answers import judge_number, rational
from arcforge_rl.environments.boxed import sandboxed_tools
from arcforge_rl.problems.dialogues import long_expression, short_program
from arcforge_rl.problems.tools import definition
from arcforge_rl.sandbox.sync import shared_desk


@dataclass(frozen=True)
class ToolTask(Task):
    """A task and its tool.

    Attributes:
        tool: name of the tool.
        argument: the oracle's argument.
    """

    tool: str
    argument: str


class ToolMath(GeneratedEnvironment):
    """The solver has a calculator or Python in its own sandbox; the last reply must contain the number."""

    domain = "tools"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a task for one of the tools, with the wording and the split of its conversations."""
        tool = draw.choice(self.config.tools)
        if tool == "calculator":
            operands, argument, question = long_expression(draw)
            answer = str(eval(argument))  # generated above from numbers and operators
        else:
            question, argument = short_program(draw)
            operands, printed = question, list[str]()
            exec(argument, {"print": lambda value: printed.append(str(value))})  # also generated
            answer = printed[0]
        return f"{tool}/{operands}", ToolTask(f"{tool}/{question}", question, answer, tool, argument)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the solver call its tool in one sandbox, opened at the first call."""
        assert isinstance(task, ToolTask)
        question, tools = Message("user", task.prompt), [Tool(definition(task.tool))]
        async with sandboxed_tools(shared_desk) as use:
            return await converse(agents, [question], tools, use, max_calls=self.config.max_calls)

    @reward(timeout=None)
    def correct(self, task: Task, episode: Episode) -> Score:
        """Compares the last reply's number; needs no timeout."""
        if episode.finish_reason != "stop":
            return Score(0.0, f"the conversation ended with {episode.finish_reason}")
        number = rational(task.answer)
        assert number is not None
        return judge_number(number, episode.reply)

    @metric(timeout=None)
    def used_tool(self, task: Task, episode: Episode) -> Score:
        """Scores whether a call succeeded."""
        answers = [message.content for message in episode.messages if message.role == "tool"]
        failed = sum(answer.startswith("Error") for answer in answers)
        return Score(float(len(answers) > failed), f"{len(answers)} calls, {failed} of them failed")

    def oracle(self, task: Task) -> Script:
        """Returns the call and the answer."""
        assert isinstance(task, ToolTask)
        parameter = {"calculator": "expression", "python": "code"}[task.tool]
        return [Reply(calls=(ToolCall(task.tool, {parameter: task.argument}),)), Reply(task.answer)]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns calls without an answer, an answer that continues calling, and answers among others."""
        assert isinstance(task, ToolTask)
        call, _ = self.oracle(task)
        endless = [Reply(task.answer, calls=call.calls)] * (self.config.max_calls + 2)
        return [
            [call],
            endless,
            [call, Reply(task.argument)],
            [call, Reply(f"{task.answer} or {task.answer}1")],
            [call, Reply(task.answer, finish_reason="length")],
            [Reply(calls=(ToolCall("python" if task.tool == "calculator" else "calculator", {}),))],
        ]
