"""Tests of untrusted programs: input and output, or function calls. Expected results never enter the sandbox."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from arcforge_core.contracts.environment import Score
from arcforge_core.contracts.sandbox import Command, Sandbox, SandboxLimits
from arcforge_core.data.sources.readers import is_utf8
from arcforge_rl.execution.function_tests import OUTPUT_BYTES, after, call_command, ending
from arcforge_rl.execution.plain_values import from_plain, to_plain

LONGEST = 50_000
"""Maximum characters of a program."""
LONGEST_NUMBER = 40
CLOSE = 1e-6
SHOWN = 80


@dataclass(frozen=True)
class Tests:
    """The tests of a program.

    Attributes:
        inputs: texts for standard input, or lists of arguments.
        outputs: expected output, or expected return values as JSON values.
        function: name of the function to call; empty for programs that read and print.
    """

    __test__ = False

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    function: str = ""


async def run_tests(sandbox: Sandbox, python: str, source: str, tests: Tests, seconds: float) -> Score:
    """Returns 1 if a Python program passes all tests, otherwise 0 with the first failing test as the reason.

    Args:
        sandbox: a fresh sandbox.
        python: path of the interpreter inside.
        source: the program.
        tests: at least one.
        seconds: wall time of each run; a function has one run for all its calls.
    """
    if not source.strip():
        return Score(0.0, "there is no program")
    if len(source) > LONGEST:
        return Score(0.0, f"the program has {len(source):,} characters; more than {LONGEST:,} are not run")
    if not is_utf8(source) or "\0" in source:
        return Score(0.0, "the program has characters that no file can have")
    limits = SandboxLimits(
        cpu_seconds=seconds, wall_seconds=seconds, memory_bytes=256 << 20, processes=16, disk_bytes=16 << 20,
        output_bytes=OUTPUT_BYTES if tests.function else 1 << 20,
    )  # fmt: skip
    if tests.function:
        return await _run_calls(sandbox, python, source, tests, limits)
    await sandbox.write("solution.py", source.encode())
    for number, (given, wanted) in enumerate(zip(tests.inputs, tests.outputs, strict=True), 1):
        command = Command((python, "-I", "-S", "solution.py"), stdin=str(given).encode(), limits=limits)
        result = await sandbox.exec(command)
        printed = result.stdout.decode(errors="replace")
        if not result.ok:
            return Score(0.0, f"test {number} of {len(tests.inputs)}: {ending(result)}")
        if not same_output(str(wanted), printed):
            return Score(0.0, f"test {number} of {len(tests.inputs)}: it printed {printed[:SHOWN]!r}")
    return Score(1.0, f"all {len(tests.inputs)} tests passed")


def same_output(wanted: str, printed: str) -> bool:
    """Returns whether two outputs have the same words in the same lines, with decimals within `CLOSE`."""
    lines = [[line.split() for line in text.strip().splitlines()] for text in (wanted, printed)]
    if [len(line) for line in lines[0]] != [len(line) for line in lines[1]]:
        return False
    pairs = zip(*(([word for line in text for word in line]) for text in lines), strict=True)
    return all(left == right or _close(left, right) for left, right in pairs)


def same_value(wanted: Any, found: Any) -> bool:
    """Returns whether two JSON values are equal, floats within `CLOSE`; True does not equal 1."""
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(same_value, wanted, found))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(same_value(value, found[key]) for key, value in wanted.items())
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, float) and isinstance(found, int | float):
        try:
            return math.isclose(wanted, found, rel_tol=CLOSE, abs_tol=CLOSE)
        except OverflowError:  # the number is too large for a float
            return False
    return type(wanted) is type(found) and bool(wanted == found)


async def _run_calls(sandbox: Sandbox, python: str, source: str, tests: Tests, limits: SandboxLimits) -> Score:
    calls = [json.dumps([to_plain(list(arguments)), to_plain({})]) for arguments in tests.inputs]
    command, word = call_command(source, tests.function, calls, python, limits)
    result = await sandbox.exec(command)
    try:
        outcomes = json.loads(after(word, result) or "null")
    except (ValueError, RecursionError):
        outcomes = None
    if not isinstance(outcomes, list) or len(outcomes) != len(calls):
        return Score(0.0, f"{tests.function} left before its calls were done: {ending(result)}")
    for number, (wanted, outcome) in enumerate(zip(tests.outputs, outcomes, strict=True), 1):
        found, said = _returned(outcome)
        if found is None or not same_value(wanted, found[0]):
            return Score(0.0, f"test {number} of {len(calls)}: {tests.function} {said[:SHOWN]}")
    return Score(1.0, f"all {len(calls)} tests passed")


def _returned(outcome: Any) -> tuple[tuple[Any] | None, str]:
    """Returns the JSON value that a call returned, if it did, and what it did in words."""
    if not isinstance(outcome, dict) or "returned" not in outcome:
        return None, f"raised {outcome.get('raised')!s}" if isinstance(outcome, dict) else "forged its outcome"
    try:
        value = json.loads(json.dumps(from_plain(outcome["returned"])))  # tuples become lists
    except (TypeError, ValueError, RecursionError):
        return None, "returned what is no JSON value"
    return (value,), f"returned {value!s}"


def _close(left: str, right: str) -> bool:
    if max(len(left), len(right)) > LONGEST_NUMBER or not ("." in left and left.isascii() and right.isascii()):
        return False
    try:
        return math.isclose(float(left), float(right), rel_tol=CLOSE, abs_tol=CLOSE)
    except ValueError:
        return False
