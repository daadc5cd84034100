"""Programming: a Python function, or a program that reads and prints, tested in a sandbox."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.base import EnvironmentBase, GeneratedEnvironment
from arcforge_core.episodes.rewards import reward
from arcforge_rl.environments.answers import NoAnswer
from arcforge_rl.environments.boxed import in_sandbox
from arcforge_rl.environments.code_problems import (
    PROBLEMS,
    as_line,
    draw_input,
    program_of,
    reference,
    source_of,
)
from arcforge_rl.environments.code_tests import Tests, run_tests
from arcforge_rl.problems.python_checker import unfenced

MOST_FENCES = 20
JUDGE_SECONDS = 120.0
"""Seconds for all tests of a reply; the sandbox ends each test long before."""


@dataclass(frozen=True)
class CodeTask(Task):
    """A task with its tests; the answer is a program that passes them, or empty if none is known."""

    tests: Tests


class CodeTested(EnvironmentBase):
    """The program is the reply's single code block, or else the whole reply; it must pass every test.

    The tasks are `CodeTask`s; the config has `seconds`.
    """

    domain = "code"

    @reward(timeout=JUDGE_SECONDS)
    async def passes(self, task: Task, episode: Episode) -> Score:
        """Runs the program in a fresh sandbox."""
        assert isinstance(task, CodeTask)
        return await judge_program(task.tests, episode, self.config.seconds)

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns programs that do nothing, leave early, print or return what was shown, or never end."""
        assert isinstance(task, CodeTask)
        return program_cheats(task.tests, task.answer)


class Code(CodeTested, GeneratedEnvironment):
    """Bundled problems, in both forms."""

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a problem with its knob and fresh tests; all of one problem and knob are on one side."""
        problem = draw.choice(PROBLEMS)
        k = problem.knob(draw)
        form = draw.choice(self.config.forms)
        inputs = [draw_input(problem, draw, place) for place in range(self.config.tests)]
        outputs = [reference(problem, k)(given) for given in inputs]
        while all(output == outputs[0] for output in outputs):  # printing the example output would pass every test
            inputs[0] = draw_input(problem, draw, self.config.tests)
            outputs[0] = reference(problem, k)(inputs[0])
        what = "a list of whole numbers" if problem.takes == "numbers" else "a text"
        key = f"{problem.name}/{k}"
        if form == "function":
            given = problem.statement.format(given="`given`", k=k)
            prompt = f"Write a Python function {problem.name}(given) that takes {what} and returns {given}."
            shown = f"{problem.name}({inputs[0]!r}) returns {outputs[0]!r}"
            tests = Tests(tuple([given] for given in inputs), tuple(outputs), problem.name)
            answer = source_of(problem, k)
        else:
            line = "whole numbers with blanks between them" if problem.takes == "numbers" else "a text"
            given = problem.statement.format(given="them" if problem.takes == "numbers" else "it", k=k)
            reads = f"reads one line from standard input, {line}"
            prompt = f"Write a Python program that {reads}, and prints {given}, in one line."
            shown = f"for {as_line(inputs[0])} it prints {as_line(outputs[0])}"
            tests = Tests(tuple(as_line(given) + "\n" for given in inputs), tuple(map(as_line, outputs)))
            answer = program_of(problem, k)
        task = CodeTask(f"code/{form}/{key}/{json.dumps(inputs[0])}", f"{prompt} Example: {shown}.", answer, tests)
        return key, task

    def oracle(self, task: Task) -> Script:
        """Returns the reference in a code block."""
        return [Reply(f"```python\n{task.answer}```")]


def program_of_reply(episode: Episode) -> str:
    """Returns the single code block of the last reply, or else the whole reply.

    Raises:
        NoAnswer: there is no program.
    """
    text = episode.reply.text
    if episode.finish_reason != "stop":
        raise NoAnswer(f"the reply was cut off ({episode.finish_reason})")
    if text.count("```") > MOST_FENCES:  # searching for pairs of fences would take long
        raise NoAnswer(f"there are more than {MOST_FENCES} fences")
    source = unfenced(text)
    if not source.strip():
        raise NoAnswer("there is no program")
    return source


async def judge_program(tests: Tests, episode: Episode, seconds: float) -> Score:
    """Runs a reply's program in a fresh sandbox."""
    try:
        source = program_of_reply(episode)
    except NoAnswer as reason:
        return Score(0.0, str(reason))
    return await in_sandbox(lambda sandbox, python: run_tests(sandbox, python, source, tests, seconds))


def program_cheats(tests: Tests, answer: str) -> Sequence[Script]:
    """Returns programs that do nothing, leave early, print or return what was shown, or never end."""
    name, shown = tests.function, tests.outputs[0]
    if name:
        texts = [
            f"def {name}(*given):\n    return {shown!r}",
            f"def {name}(*given):\n    import os\n    os._exit(0)",
            f"class Equal:\n    __eq__ = lambda *_: True\ndef {name}(*given):\n    return Equal()",
            f"def {name}(*given):\n    while True: pass",
        ]
    else:
        texts = [f"print({shown!r})", "import os\nos._exit(0)", "while True: print('x' * 1000)"]
    several = f"{answer}\n```python\npass\n```\n```python\npass\n```"
    return [[Reply(text)] for text in [*texts, "pass", several]]
