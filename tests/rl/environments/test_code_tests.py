"""Programs in the sandbox: what is right passes, in bounded time, and nothing else does."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_rl.environments.boxed import in_sandbox
from arcforge_rl.environments.code_tests import Tests, run_tests, same_output, same_value

ADD = Tests(("1 2\n", "30 -4\n"), ("3", "26"))
CALL = Tests(([1, 2], [30, -4]), (3, 26), "add")


ENDLESS = "time.sleep", "while True: pass", "9**9**9"
"""Parts of programs that the limit of time ends; it must end no other one, however busy the machine."""


def judged(source, tests):
    seconds = 1.0 if any(part in source for part in ENDLESS) else 60.0
    return asyncio.run(in_sandbox(lambda sandbox, python: run_tests(sandbox, python, source, tests, seconds)))


@pytest.mark.parametrize(
    ("source", "tests", "value", "reason"),
    [
        ("print(sum(map(int, input().split())))", ADD, 1.0, "all 2 tests passed"),
        ("print(sum(map(int, input().split())), end='')", ADD, 1.0, "all 2"),
        ("print(3)", ADD, 0.0, "test 2 of 2: it printed '3"),
        ("print(1/0)", ADD, 0.0, "test 1 of 2: exit 1: ZeroDivisionError"),
        ("import time; time.sleep(60)", ADD, 0.0, "timeout"),
        ("while True: pass", ADD, 0.0, "test 1"),
        ("print('x' * 100_000_000)", ADD, 0.0, "output_limit"),
        ("while True: print('y' * 10_000)", ADD, 0.0, "output_limit"),
        ("x = bytearray(1 << 33)", ADD, 0.0, "test 1"),
        ("print(9**9**9)", ADD, 0.0, "test 1"),
        ("def f(:", ADD, 0.0, "SyntaxError"),
        ("import os; os.kill(os.getpid(), 9)", ADD, 0.0, "signal 9"),
        ("\ud800", ADD, 0.0, "no file can have"),
        ("print(1)\0", ADD, 0.0, "no file can have"),
        ("#" * 60_000, ADD, 0.0, "60,000 characters"),
        (" \n", ADD, 0.0, "there is no program"),
        ("def add(a, b): return a + b", CALL, 1.0, "all 2"),
        ("class Solution:\n  def add(self, a, b): return a + b", CALL, 1.0, "all 2"),
        ("print('noise')\ndef add(a, b):\n  print('more')\n  return a + b", CALL, 1.0, "all 2"),
        ("def add(a, b): return 3", CALL, 0.0, "test 2 of 2: add returned 3"),
        ("def add(a, b): return float(a + b)", CALL, 0.0, "returned 3.0"),
        ("def add(a, b): return True", CALL, 0.0, "returned True"),
        ("def add(a, b): return {a}", CALL, 0.0, "no JSON value"),
        ("def add(a, b): return a / 0", CALL, 0.0, "raised ZeroDivisionError"),
        ("def add(a, b): return (a, b)", Tests(([1, 2],), ([1, 2],), "add"), 1.0, "all 1"),
        ("def plus(a, b): return a + b", CALL, 0.0, "left before"),
        ("import os\nprint('[3, 26]')\nos._exit(0)", CALL, 0.0, "left before"),
        ("import sys\nsys.exit(0)", CALL, 0.0, "left before"),
        ("def add(a, b):\n  while True: pass", CALL, 0.0, "left before"),
        ("def add(a, b): return float('nan')", CALL, 0.0, "returned nan"),
        ("def add(a, b): return [" * 1 + "[" * 90 + "]" * 90 + "]", CALL, 0.0, "test 1"),
        ("import json\njson.dumps = lambda value: '[3'\ndef add(a, b): return 3", CALL, 0.0, "left before"),
        ("import json\njson.dumps = lambda value: '[' * 100_000\ndef add(a, b): return 3", CALL, 0.0, "left before"),
        ("import json\njson.dumps = lambda value: '[3, {}]'\ndef add(a, b): return 3", CALL, 0.0, "forged"),
        ("import atexit, time\natexit.register(time.sleep, 60)\ndef add(a, b): return a + b", CALL, 0.0, "timeout"),
    ],
)
def test_programs(source, tests, value, reason):
    found = judged(source, tests)
    assert found.value == value and reason in found.reason, found


@pytest.mark.parametrize(
    ("wanted", "printed", "same"),
    [
        ("1 2\n3", "1 2 \n3\n\n", True),
        ("1 2\n3", "1\n2 3", False),
        ("0.5", "0.5000001", True),
        ("0.5", "0.51", False),
        ("5", "5.0", False),
        ("0.5", "1e-1000000000", False),
        ("0.5", "nan", False),
        ("0.5", "\u0660.5", False),
        ("", "", True),
        ("1.0", "1." + "0" * 100, False),
    ],
)
def test_outputs(wanted, printed, same):
    assert same_output(wanted, printed) == same


@given(st.text(), st.text())
def test_any_outputs_can_be_compared(wanted, printed):
    assert same_output(wanted, wanted)
    assert same_output(wanted, printed) in (True, False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
)


@given(JSON, JSON)
def test_any_values_can_be_compared(wanted, found):
    assert same_value(wanted, found) in (True, False)
    if wanted == wanted:  # no NaN
        assert same_value(wanted, wanted) or "nan" in repr(wanted)
    assert not same_value([1], [True]) and not same_value(1, 1.0) and same_value(1.0, 1)
    assert not same_value(0.5, 10**400) and not same_value(1.0, True)
