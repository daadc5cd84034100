"""Checkers that run programs in a fresh sandbox: the output of a program, and the doctests of a function."""

from __future__ import annotations

import ast
import doctest
import json
import re

from arcforge_core.contracts.sandbox import Command, SandboxLimits
from arcforge_core.data.sources.functions import parse_quietly
from arcforge_core.data.sources.readers import is_utf8
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.commands import DoctestCheckerConfig, OutputCheckerConfig
from arcforge_rl.execution.function_tests import after, call_command
from arcforge_rl.execution.plain_values import from_plain, to_plain
from arcforge_rl.problems.library import Function, find_function
from arcforge_rl.sandbox.sync import Bench, shared_desk

LIMITS = SandboxLimits(cpu_seconds=5, wall_seconds=10, memory_bytes=256 << 20, processes=16, disk_bytes=16 << 20)
LONGEST = 20_000
"""Maximum characters of an answer."""
FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
RUN_EXAMPLES = """

def arcforge_examples(sources):
    import contextlib, io, sys, traceback
    names, outputs = dict(globals()), []
    for source in sources:
        printed, raised = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            try:
                sys.displayhook = sys.__displayhook__
                exec(compile(source, "example.py", "single", dont_inherit=True), names)
            except Exception as error:
                raised = traceback.format_exception_only(type(error), error)[-1]
        outputs.append([printed.getvalue(), raised])
    return outputs
"""
"""Runs examples in the candidate's process; their outputs leave it as texts and are compared outside."""
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


LOOKING_ELSEWHERE = re.compile(
    r"""__(import|builtins|globals|subclasses|loader|spec|dict|code|class|bases?|mro|traceback)__|(f|tb|gi|cr|ag)_\w+
    |open|exec|eval|compile|globals|locals|vars|getattr|sys|os|io|builtins|importlib|inspect|linecache|modules|runpy
    |pkgutil|zipimport|gc|ctypes""",
    re.VERBOSE,
)
"""Names by which a function could reach the library's own file, where its original is."""


class OutputChecker:
    """The answer is the output of a program. The program is run again in a sandbox and compared with the answer."""

    def __init__(self, config: OutputCheckerConfig) -> None:
        self._program = config.program

    def check(self, answer: str) -> bool:
        """Returns whether the program succeeds and prints the answer, except for surrounding white space."""
        if not answer.strip() or len(answer) > LONGEST:
            return False
        desk = shared_desk()
        desk.clear()
        output = run_program(self._program, desk)
        return output is not None and unfenced(answer).strip() == output.strip()


class DoctestChecker:
    """The answer is a rewritten function of the standard library that passes the doctests of the original.

    The tests come from the library's docstring, not from the answer's. The function must have the original's name and
    parameters and replaces it in the module's source.
    """

    def __init__(self, config: DoctestCheckerConfig) -> None:
        function = find_function(config.module, config.function) if config.module else None
        if config.module and function is None:
            known = "this Python's library has no function of that name with doctests"
            raise ConfigError("checker.function", f"{config.module}:{config.function}", known)
        self._function = function

    def check(self, answer: str) -> bool:
        """Returns whether the answer is the function and passes its tests in a fresh sandbox."""
        if self._function is None or len(answer) > LONGEST:
            return False
        return keeps_doctests(self._function, unfenced(answer), shared_desk())


def unfenced(answer: str) -> str:
    """Returns the single code block of an answer, or else the whole answer."""
    blocks: list[str] = FENCE.findall(answer)
    return blocks[0] if len(blocks) == 1 else answer


def run_program(program: str, desk: Bench) -> str | None:
    """Returns the output of a program in the desk's sandbox, or None if it fails."""
    result = desk.run(Command((desk.python, "-I", "-S", "-c", program), limits=LIMITS))
    return result.stdout.decode(errors="replace") if result.ok else None


def keeps_doctests(function: Function, written: str, desk: Bench) -> bool:
    """Returns whether a function passes the doctests of the library function that it replaces."""
    if not is_utf8(written) or not same_head(function, written):
        return False
    examples = [e for e in doctest.DocTestParser().get_examples(function.docstring) if not e.options.get(doctest.SKIP)]
    call = json.dumps([to_plain([[example.source for example in examples]]), to_plain({})])
    module, source = function.module.removesuffix(".py").replace("/", "."), function.replaced(written) + RUN_EXAMPLES
    command, word = call_command(source, "arcforge_examples", [call], desk.python, LIMITS, module)
    desk.clear()
    outcomes = after(word, desk.run(command))
    desk.clear()
    try:
        ((outputs,),) = ([from_plain(outcome["returned"])] for outcome in json.loads(outcomes or "[]"))
        pairs = [(str(printed), raised) for printed, raised in outputs]
    except (ValueError, TypeError, KeyError, RecursionError):  # forged, or not there
        return False
    return len(pairs) == len(examples) and any(map(_tells, examples)) and all(map(_as_wanted, examples, pairs))


def _tells(example: doctest.Example) -> bool:
    """Returns whether an example shows a result, and does not compare it in the candidate's process."""
    tree = parse_quietly(example.source)
    compares = tree is None or any(isinstance(node, ast.Compare) for node in ast.walk(tree))
    return bool(example.exc_msg or example.want.strip()) and not compares


def _as_wanted(example: doctest.Example, output: tuple[str, object]) -> bool:
    printed, raised = output
    flags = FLAGS | sum(flag for flag, wanted in example.options.items() if wanted)
    wanted, found = (example.want, printed) if example.exc_msg is None else (example.exc_msg, raised)
    return (raised is None) == (example.exc_msg is None) and doctest.OutputChecker().check_output(
        wanted, str(found), flags
    )


def same_head(function: Function, written: str) -> bool:
    """Returns whether a text is one function with the library function's name and parameters, and with a body."""
    tree = parse_quietly(written)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        return False
    found = tree.body[0]
    if found.decorator_list or not looked_for(found) <= looked_for(function.node):
        return False
    return found.name == function.node.name and ast.dump(found.args) == ast.dump(function.node.args)


def looked_for(node: ast.FunctionDef) -> set[str]:
    """Returns the modules that a function imports, and the names in it that could reach the library's own file."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Import | ast.ImportFrom):
            module = f"{'.' * part.level}{part.module}." if isinstance(part, ast.ImportFrom) else ""
            found |= {f"import {module}{alias.name}" for alias in part.names}
        elif isinstance(part, ast.Name | ast.Attribute):
            name = part.id if isinstance(part, ast.Name) else part.attr
            found |= {name} if LOOKING_ELSEWHERE.fullmatch(name) else set()
    return found
