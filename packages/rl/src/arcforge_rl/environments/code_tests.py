"""Tests of untrusted programs: input and output, or calls of a function. What is expected never enters the sandbox."""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import dataclass
from typing import Any

from arcforge_core.contracts.environment import Score
from arcforge_core.contracts.sandbox import Command, ExecResult, Limits
from arcforge_core.data.readers import is_utf8
from arcforge_rl.sandbox.desk import Place

LONGEST = 50_000
"""Characters of a program that is run."""
LONGEST_NUMBER = 40
CLOSE = 1e-6
SHOWN = 80
CALL = """
import json, sys
given = json.loads(sys.stdin.read())
names = {"__name__": "solution"}
exec(compile(given["source"], "solution.py", "exec"), names)
function = names[given["name"]] if given["name"] in names else getattr(names["Solution"](), given["name"])
results = [function(*arguments) for arguments in given["calls"]]
sys.stdout.write("\\n" + given["word"] + json.dumps(results) + "\\n")
"""
"""Runs calls. Their results stand behind a word, so that what else is printed does not matter."""


@dataclass(frozen=True)
class Tests:
    """What a program has to do.

    Attributes:
        inputs: texts for standard input, or lists of arguments.
        outputs: what is to be printed, or returned (as JSON has it).
        function: the name of the function that is called; empty for programs that read and print.
    """

    __test__ = False

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    function: str = ""


def run_tests(place: Place, source: str, tests: Tests, seconds: float) -> Score:
    """Returns 1 where a Python program passes all tests, else 0; the reason names the first that it fails.

    Args:
        place: the sandbox.
        source: the program.
        tests: at least one.
        seconds: wall time of each run; functions have one run for all their calls.
    """
    if not source.strip():
        return Score(0.0, "there is no program")
    if len(source) > LONGEST:
        return Score(0.0, f"the program has {len(source):,} characters; more than {LONGEST:,} are not run")
    if not is_utf8(source) or "\0" in source:
        return Score(0.0, "the program has characters that no file can have")
    limits = Limits(
        cpu_seconds=seconds, wall_seconds=seconds, memory_bytes=256 << 20, processes=16, disk_bytes=16 << 20
    )
    if tests.function:
        return _run_calls(place, source, tests, limits)
    place.lay({"solution.py": source})
    for number, (given, wanted) in enumerate(zip(tests.inputs, tests.outputs, strict=True), 1):
        command = Command((place.python, "-I", "-S", "solution.py"), stdin=str(given).encode(), limits=limits)
        result = place.run(command)
        printed = result.stdout.decode(errors="replace")
        if not result.ok:
            return Score(0.0, f"test {number} of {len(tests.inputs)}: {_ending(result)}")
        if not same_output(str(wanted), printed):
            return Score(0.0, f"test {number} of {len(tests.inputs)}: it printed {printed[:SHOWN]!r}")
    return Score(1.0, f"all {len(tests.inputs)} tests passed")


def same_output(wanted: str, printed: str) -> bool:
    """Returns whether two outputs are the same: the same words in the same lines, decimals within `CLOSE`."""
    lines = [[line.split() for line in text.strip().splitlines()] for text in (wanted, printed)]
    if [len(line) for line in lines[0]] != [len(line) for line in lines[1]]:
        return False
    pairs = zip(*(([word for line in text for word in line]) for text in lines), strict=True)
    return all(left == right or _close(left, right) for left, right in pairs)


def same_value(wanted: Any, found: Any) -> bool:
    """Returns whether two JSON values are the same, floats within `CLOSE`; True is no 1."""
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(same_value, wanted, found))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(same_value(value, found[key]) for key, value in wanted.items())
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, float) and isinstance(found, int | float):
        try:
            return math.isclose(wanted, found, rel_tol=CLOSE, abs_tol=CLOSE)
        except OverflowError:  # a number of more digits than a float can have
            return False
    return type(wanted) is type(found) and bool(wanted == found)


def _run_calls(place: Place, source: str, tests: Tests, limits: Limits) -> Score:
    word = secrets.token_hex(16)
    given = {"source": source, "name": tests.function, "calls": list(tests.inputs), "word": word}
    stdin = json.dumps(given).encode()
    result = place.run(Command((place.python, "-I", "-S", "-c", CALL), stdin=stdin, limits=limits))
    if not result.ok:
        return Score(0.0, f"{tests.function} does not come to its end: {_ending(result)}")
    _, found, answer = result.stdout.decode(errors="replace").rpartition(f"\n{word}")
    try:
        values = json.loads(answer) if found else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or len(values) != len(tests.outputs):
        return Score(0.0, f"{tests.function} left before its calls were done")
    for number, (wanted, value) in enumerate(zip(tests.outputs, values, strict=True), 1):
        if not same_value(wanted, value):
            return Score(0.0, f"test {number} of {len(values)}: {tests.function} returned {str(value)[:SHOWN]}")
    return Score(1.0, f"all {len(values)} tests passed")


def _close(left: str, right: str) -> bool:
    if max(len(left), len(right)) > LONGEST_NUMBER or not ("." in left and left.isascii() and right.isascii()):
        return False
    try:
        return math.isclose(float(left), float(right), rel_tol=CLOSE, abs_tol=CLOSE)
    except ValueError:
        return False


def _ending(result: ExecResult) -> str:
    last = result.stderr.decode(errors="replace").strip().rsplit("\n", 1)[-1][:SHOWN]
    code = "" if result.code is None else f" {result.code}"
    return f"{result.outcome.value}{code}{': ' + last if last else ''}"
