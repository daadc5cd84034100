"""Checkers that run programs in a fresh sandbox: what a program prints, and whether a function keeps its doctests."""

from __future__ import annotations

import ast
import doctest
import json
import re

from arcforge_core.contracts.sandbox import Command, Limits
from arcforge_core.data.functions import parse_quietly
from arcforge_core.data.readers import is_utf8
from arcforge_core.errors import ConfigError
from arcforge_rl.configs import DoctestCheckerConfig, OutputCheckerConfig
from arcforge_rl.conversations.library import Function, find_function
from arcforge_rl.execution.python_checks import python_check
from arcforge_rl.sandbox.desk import Bench, shared_desk

LIMITS = Limits(cpu_seconds=5, wall_seconds=10, memory_bytes=256 << 20, processes=16, disk_bytes=16 << 20)
LONGEST = 20_000
"""Characters of an answer that is looked at."""
FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
RUN_DOCTESTS = """
import doctest, json, sys, types
given = json.loads({given!r})
module = types.ModuleType(given["module"])
module.__dict__["__file__"] = given["module"] + ".py"
exec(compile(given["source"], given["module"] + ".py", "exec"), module.__dict__)
names = dict(module.__dict__)
sys.modules[given["module"]] = module
test = doctest.DocTestParser().get_doctest(given["docstring"], names, given["name"], None, 0)
assert test.examples
result = doctest.DocTestRunner(verbose=False, optionflags={flags}).run(test, out=lambda text: None)
assert result.failed == 0 and result.attempted == len(test.examples), result
"""
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


class OutputChecker:
    """The answer is what a program prints. The program is run anew, in a sandbox; the answer is only compared."""

    def __init__(self, config: OutputCheckerConfig) -> None:
        self._program = config.program

    def check(self, answer: str) -> bool:
        """Returns whether the program ran to its end and printed that, white space around it aside."""
        if not answer.strip() or len(answer) > LONGEST:
            return False
        desk = shared_desk()
        desk.clear()
        output = run_program(self._program, desk)
        return output is not None and unfenced(answer).strip() == output.strip()


class DoctestChecker:
    """The answer is a function of the standard library, written anew, that keeps the doctests of the original.

    The tests are those of the library's docstring, whatever docstring the answer has. The function must have the
    original's name and parameters and takes its place in the module's source.
    """

    def __init__(self, config: DoctestCheckerConfig) -> None:
        function = find_function(config.module, config.function) if config.module else None
        if config.module and function is None:
            known = "no function of that name with doctests is in this Python's library"
            raise ConfigError("checker.function", f"{config.module}:{config.function}", known)
        self._function = function

    def check(self, answer: str) -> bool:
        """Returns whether the function is there and keeps its tests in a fresh sandbox."""
        if self._function is None or len(answer) > LONGEST:
            return False
        return keeps_doctests(self._function, unfenced(answer), shared_desk())


def unfenced(answer: str) -> str:
    """Returns the one block of code of an answer, or the answer where there is none."""
    blocks: list[str] = FENCE.findall(answer)
    return blocks[0] if len(blocks) == 1 else answer


def run_program(program: str, desk: Bench) -> str | None:
    """Returns what a program prints in the desk's sandbox; None when it fails."""
    result = desk.run(Command((desk.python, "-I", "-S", "-c", program), limits=LIMITS))
    return result.stdout.decode(errors="replace") if result.ok else None


def keeps_doctests(function: Function, written: str, desk: Bench) -> bool:
    """Returns whether a function in the place of the library's keeps the library's doctests."""
    if not is_utf8(written) or not same_head(function, written):
        return False
    given = {
        "module": function.module.removesuffix(".py").replace("/", "."),
        "source": function.replaced(written),
        "docstring": function.docstring,
        "name": function.name,
    }
    check = python_check(RUN_DOCTESTS.format(given=json.dumps(given), flags=FLAGS), desk.python, LIMITS)
    desk.clear()
    passed = check.passed(desk.run(check.command))
    desk.clear()
    return passed


def same_head(function: Function, written: str) -> bool:
    """Whether a text is one function with the name and the parameters of the library's, and something to do."""
    tree = parse_quietly(written)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        return False
    found = tree.body[0]
    if found.decorator_list:
        return False
    return found.name == function.node.name and ast.dump(found.args) == ast.dump(function.node.args)
