"""Tests of an untrusted function: it runs in one sandbox, its test in another one that never runs the candidate.

Only JSON crosses (`plain_values`): arguments of calls one way, results or exceptions by name the other way. The types
are rebuilt on the test's side, so that no object, method or name of the candidate reaches the test. Arguments are
copies: a function that changes them changes nothing outside. All calls are made in one process, in the test's order.

A test makes the same calls of the reference as of a right candidate, so they are found once, with the reference. A test
whose calls depend on the results runs again when it needs one more call, `MOST_ROUNDS` times at most.

A process can rewrite every other one of its sandbox, the first one included (``/proc/PID/mem``). So exit codes, output
and results of the candidate's sandbox are all taken as the candidate's own claims: the results are compared, and the
rest decides nothing. The verdict comes from the other sandbox, whose processes run trusted code.
"""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from arcforge_core.contracts.environment import Score
from arcforge_core.contracts.sandbox import Command, CommandStatus, ExecResult, SandboxLimits
from arcforge_rl.execution import candidate, examiner, plain_values

OUTPUT_BYTES = 4 << 20
"""Maximum bytes of all results of a candidate."""
MOST_ROUNDS = 10
MOST_KEPT = 10_000
"""Tests whose calls are remembered."""
_CALLS: dict[FunctionTest, list[str]] = {}


@dataclass(frozen=True)
class FunctionTest:
    """A test of one function, in HumanEval's form.

    Attributes:
        name: name of the function.
        reference: source of a right solution with the helpers that the test needs.
        test: source that tests ``candidate`` and raises if it is wrong. It is trusted: texts that it evaluates are run.
        module: name of the module that both sources, and the candidate's, are loaded as.
    """

    name: str
    reference: str
    test: str
    module: str = "solution"


def judge_function(
    test: FunctionTest, source: str, python: str, limits: SandboxLimits
) -> Generator[Command, ExecResult, Score]:
    """Yields commands, each to be run in a fresh sandbox, and receives their results; returns 1 for a passed test.

    Args:
        test: the test.
        source: the candidate's program, which defines the function.
        python: path of the interpreter inside.
        limits: limits of each command.
    """
    calls = _CALLS.get(test)
    if calls is None:
        verdict = yield from _examine(test, python, limits, [], None)
        calls = verdict["calls"]
        if verdict["passed"] and len(_CALLS) < MOST_KEPT:
            _CALLS[test] = calls
    for _ in range(MOST_ROUNDS):
        command, word = call_command(source, test.name, calls, python, limits, test.module)
        result = yield command
        outcomes = after(word, result)
        if outcomes is None:
            return Score(0.0, f"{test.name} left before its calls were done: {ending(result)}")
        verdict = yield from _examine(test, python, limits, calls, outcomes)
        calls = verdict["asks"]
        if not calls:
            return Score(float(verdict["passed"] is True), verdict["reason"])
    return Score(0.0, f"the test makes other calls in each of {MOST_ROUNDS} rounds")


def call_command(
    source: str, name: str, calls: Sequence[str], python: str, limits: SandboxLimits, module: str = "solution"
) -> tuple[Command, str]:
    """Returns a command that calls a function of an untrusted program, and the word before its outcomes.

    The word separates the outcomes from other output and is no secret.

    Args:
        source: the program.
        name: the function, or a method of the program's class ``Solution``.
        calls: positional and named arguments of each call, as JSON of plain values.
        python: path of the interpreter inside.
        limits: limits of the command.
        module: name of the module that the program is loaded as.
    """
    given = {"source": source, "name": name, "calls": [json.loads(call) for call in calls], "module": module}
    return _command(candidate, given, python, limits)


def after(word: str, result: ExecResult) -> str | None:
    """Returns what a command printed after a word; None if it did not, or exceeded a limit. Exit codes do not count."""
    if result.outcome not in (CommandStatus.EXIT, CommandStatus.SIGNAL):
        return None
    _, found, text = result.stdout.decode(errors="replace").rpartition(f"\n{word}")
    return text if found else None


def ending(result: ExecResult) -> str:
    """Returns how a command ended and the end of its errors, in one line."""
    last = result.stderr.decode(errors="replace").strip().rsplit("\n", 1)[-1][:80]
    code = "" if result.code is None else f" {result.code}"
    return f"{result.outcome.value}{code}{': ' + last if last else ''}"


def _examine(
    test: FunctionTest, python: str, limits: SandboxLimits, calls: list[str], outcomes: str | None
) -> Generator[Command, ExecResult, dict[str, Any]]:
    given = {
        "name": test.name, "reference": test.reference, "test": test.test, "module": test.module,
        "calls": calls, "outcomes": outcomes,
    }  # fmt: skip
    command, word = _command(examiner, given, python, limits)
    result = yield command
    verdict = after(word, result)
    if verdict is None:  # the values were too large or slow, or the test itself left
        return {"passed": False, "reason": f"the test did not end: {ending(result)}", "calls": [], "asks": []}
    found: dict[str, Any] = json.loads(verdict)
    return found


def _command(program: ModuleType, given: dict[str, Any], python: str, limits: SandboxLimits) -> tuple[Command, str]:
    word = secrets.token_hex(16)
    stdin = json.dumps(given | {"word": word}).encode()
    # without site: half the start-up time; with a fixed hash seed, so that a test makes the same calls again
    return Command((python, "-s", "-S", "-c", _text(program)), stdin, {"PYTHONHASHSEED": "0"}, limits=limits), word


def _text(program: ModuleType) -> str:
    """Returns the text of `plain_values` and of a module that imports it, as one program."""
    lines = inspect.getsource(plain_values).splitlines() + inspect.getsource(program).splitlines()
    kept = [line for line in lines if not line.startswith(("from __future__", "from arcforge_rl"))]
    return "\n".join(["from __future__ import annotations", *kept])
