"""Mathematics with tools: numbers too long for the head, and lists that a few lines of Python go through."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.contracts.sandbox import SandboxError
from arcforge_core.environments.base import GeneratedEnvironment
from arcforge_core.environments.rewards import metric, reward
from arcforge_core.environments.turns import converse
from arcforge_rl.conversations.dialogues import long_expression, short_program
from arcforge_rl.conversations.tools import definition, use
from arcforge_rl.environments.answers import judge_number, rational
from arcforge_rl.environments.boxes import open_desk
from arcforge_rl.sandbox.desk import Place


@dataclass(frozen=True)
class ToolTask(Task):
    """A task and its tool.

    Attributes:
        tool: its name.
        argument: what the oracle gives it.
    """

    tool: str
    argument: str


class ToolMath(GeneratedEnvironment):
    """The solver has a calculator, or Python, in a sandbox of its own; the last reply must have the number."""

    domain = "tools"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a task for one of the tools, worded and split as the conversations with it are."""
        tool = draw.choice(self.config.tools)
        if tool == "calculator":
            operands, argument, question = long_expression(draw)
            answer = str(eval(argument))  # numbers and signs of our own making
        else:
            question, argument = short_program(draw)
            operands, printed = question, list[str]()
            exec(argument, {"print": lambda value: printed.append(str(value))})  # likewise
            answer = printed[0]
        return f"{tool}/{operands}", ToolTask(f"{tool}/{question}", question, answer, tool, argument)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the solver call its tool, in one sandbox that begins with the first call."""
        assert isinstance(task, ToolTask)
        places: list[Place] = []

        def run_tool(call: ToolCall) -> str:
            if not places:
                places.append(open_desk().place())
            return use(places[0], call.name, call.arguments)

        async def called(call: ToolCall) -> str:
            try:
                return await asyncio.to_thread(run_tool, call)
            except SandboxError as error:
                return f"Error: {error}"

        tools = [Tool(definition(task.tool))]
        try:
            return await converse(
                agents, [Message("user", task.prompt)], tools, called, max_calls=self.config.max_calls
            )
        finally:
            for place in places:
                await asyncio.to_thread(place.clear)

    @reward(timeout=None)
    def correct(self, task: Task, episode: Episode) -> Score:
        """Compares the last reply's number, which is bounded by itself."""
        if episode.finish_reason != "stop":
            return Score(0.0, f"the conversation ended with {episode.finish_reason}")
        number = rational(task.answer)
        assert number is not None
        return judge_number(number, episode.reply)

    @metric(timeout=None)
    def used_tool(self, task: Task, episode: Episode) -> Score:
        """Tells whether a call was answered."""
        answers = [message.content for message in episode.messages if message.role == "tool"]
        failed = sum(answer.startswith("Error") for answer in answers)
        return Score(float(len(answers) > failed), f"{len(answers)} calls, {failed} of them failed")

    def oracle(self, task: Task) -> Script:
        """Returns the call and the answer."""
        assert isinstance(task, ToolTask)
        parameter = {"calculator": "expression", "python": "code"}[task.tool]
        return [Reply(calls=(ToolCall(task.tool, {parameter: task.argument}),)), Reply(task.answer)]

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns calls without an answer, an answer that goes on calling, and answers among others."""
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
