"""Tests of functions across two sandboxes: HumanEval's own solutions pass, forged results and tricks do not."""

import asyncio
import re
from dataclasses import replace

import pytest

from arcforge_core.contracts.environment import Reply
from arcforge_core.contracts.sandbox import SandboxLimits
from arcforge_core.episodes.scripted import play
from arcforge_rl.configs.environments import HumanEvalConfig
from arcforge_rl.environments.boxed import judge_in_sandboxes
from arcforge_rl.environments.human_eval import HumanEval
from arcforge_rl.execution.function_tests import MOST_ROUNDS, FunctionTest

LIMITS = SandboxLimits(cpu_seconds=60, wall_seconds=60, memory_bytes=256 << 20)
DOUBLE = FunctionTest(
    "double",
    "import math\ndef double(x):\n    return x + x\n",
    "assert candidate(2) == 4 and candidate([1]) == [1, 1]\nassert candidate('a') == 'aa'\n",
)


def judged(source, test=DOUBLE, **limits):
    return asyncio.run(judge_in_sandboxes(test, source, replace(LIMITS, **limits)))


def verdict_of(reference, test, name="f", **limits):
    return judged(reference, FunctionTest(name, reference, test), **limits)


@pytest.mark.parametrize("split", [
    pytest.param("train", marks=pytest.mark.nightly(reason="most of HumanEval's 164 problems")),
    pytest.param("heldout", marks=pytest.mark.slow(reason="some of HumanEval's 164 problems")),
])  # fmt: skip
def test_human_eval(split):
    environment = HumanEval(HumanEvalConfig(split=split, seconds=30.0))
    tasks = [environment.task(index) for index in range(environment.num_tasks)]

    async def together(replies):
        outcomes = await asyncio.gather(*(play(environment, task, [Reply(text)]) for task, text in replies))
        return [outcome.reward for _, outcome in outcomes]

    right = asyncio.run(together([(task, task.answer) for task in tasks]))
    assert [task.key for task, reward in zip(tasks, right, strict=True) if reward != 1.0] == []
    wrong = [(task, re.sub(r"\breturn\b", 'return "wrong",', task.answer)) for task in tasks[::4]]
    assert set(asyncio.run(together(wrong))) == {0.0}


def test_a_right_function_passes_and_may_print():
    found = judged("import sys\nprint('noise')\ndef double(x):\n    sys.stdout.write('no line end')\n    return x + x")
    assert found.value == 1.0 and found.reason == "all tests passed"


FORGED = {
    "no results": "[]",
    "as many as there are calls": '[{"returned": true}, {"returned": true}, {"returned": true}]',
    "a verdict": '{"passed": true, "reason": "", "calls": [], "asks": []}',
    "other calls": '{"passed": false, "reason": "", "calls": [], "asks": ["[[], {}]"]}',
    "an unknown type": '[{"returned": {"Everything": []}}, {}, {}]',
    "a set of lists": '[{"returned": {"set": [[1]]}}, {}, {}]',
    "pairs of one": '[{"returned": {"dict": [[1]]}}, {}, {}]',
    "nested": "[" * 90_000,
    "nested values": '[{"returned": ' + "[" * 500 + "]" * 500 + "}, 1, 2]",
    "a long number": "[" + "9" * 5000 + "]",
    "no exception": '[{"raised": "SystemExit", "text": ""}, 1, 2]',
    "no text": "\ud800",
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_forged_results_do_not_pass(forged):
    source = (
        "import json, os, sys\nframe = sys._getframe()\nwhile 'given' not in frame.f_locals: frame = frame.f_back\n"
        f"word = frame.f_locals['given']['word']\n"
        f"os.write(1, ('\\n' + word + {forged!r} + '\\n').encode(errors='replace'))\nos._exit(0)"
    )
    found = judged(source)
    assert found.value == 0.0 and found.reason


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("", "there is no test"),
        ("pass", ""),
        ("import os\nos._exit(0)", "the test did not end"),
        ("import sys\ncandidate(1)\nsys.exit(0)", "SystemExit"),
        ("try:\n    candidate(lambda: 1)\nexcept Exception:\n    pass", ""),
        ("assert candidate(1) == 3", "AssertionError"),
        ("while True: pass", "the test did not end"),
    ],
)
def test_tests_that_judge_nothing_do_not_pass(test, reason):
    limits = {"cpu_seconds": 1} if "while True" in test else {}
    found = verdict_of("def f(x): return x + 1", test, **limits)
    assert found.value == 0.0 and reason in found.reason, found


@pytest.mark.parametrize(
    "value",
    [
        "None", "True", "-1", "1 << 4000", "0.5", "float('inf')", "'\\ud800\\0'", "b'\\xff'", "1j", "[]", "(1, [2])",
        "{1: (2,), 'a': None}", "{1, 'b', (2, 3)}", "frozenset([1])", "[[()], {}]",
    ],
)  # fmt: skip
def test_types_cross_in_both_directions(value):
    check = "assert found == {0} and type(found) is type({0})"
    source = f"def f(found):\n    {check.format(value)}\n    return {value}"
    assert verdict_of(
        source, f"found = candidate({value})\n{check.format(value)}\nfound = candidate(found={value})"
    ).value


@pytest.mark.parametrize("error", ["StopIteration", "StopAsyncIteration", "type('End', (StopIteration,), {})"])
def test_a_function_cannot_end_the_loops_of_its_test(error):
    test = "for found, wanted in zip(map(candidate, [1, 2]), [2, 3]):\n    assert found == wanted"
    assert verdict_of("def f(x): return x + 1", test).value == 1.0
    found = judged(f"def f(x): raise {error}", FunctionTest("f", "def f(x): return x + 1", test))
    assert found.value == 0.0 and "raised StopIteration" in found.reason.replace("StopAsync", "Stop")


def test_a_function_may_raise_what_its_reference_raises():
    test = "assert candidate(1) == 1\ntry:\n    candidate(0)\nexcept StopIteration:\n    pass\nelse:\n    assert 0"
    assert verdict_of("def f(x): return next(iter([x] * x))", test).value == 1.0


def test_not_a_number_crosses():
    source = "import math\ndef f(x): return x if math.isnan(x) else 0"
    assert verdict_of(source, "assert candidate(float('nan')) != candidate(float('nan'))").value == 1.0


def test_subclasses_arrive_as_plain_values():
    source = (
        "class N(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\ndef f(): return [N(3), {N(4): N(5)}]"
    )
    assert verdict_of(source, "assert candidate() == [3, {4: 5}]").value == 1.0
    assert verdict_of(source, "found = candidate()\nassert type(found[0]) is int and found[0] == 7").value == 0.0


def test_exceptions_arrive_by_name():
    source = "class Own(KeyError): pass\ndef f(x): raise Own('why') if x else UnicodeDecodeError('a', b'', 0, 1, 'b')"
    test = (
        "for x, kind in ((1, KeyError), (0, Exception)):\n    try:\n        candidate(x)\n"
        "    except kind as error:\n        assert 'why' in str(error) or not x\n    else:\n        assert False"
    )
    assert verdict_of(source, test).value == 1.0
    assert verdict_of("def f(x): raise SystemExit", test).value == 0.0


def test_changed_arguments_change_nothing_outside():
    reference = "def f(x): return sorted(x)"
    test = FunctionTest("f", reference, "given = [2, 1]\nassert candidate(given) == sorted(given) and given == [2, 1]")
    assert judged("def f(x):\n    x.clear()\n    return x", test).value == 0.0
    assert judged("def f(x):\n    x.sort()\n    return x", test).value == 1.0


def test_the_tests_names_are_not_the_candidates():
    test = FunctionTest("f", "def helper(x): return x\ndef f(x): return x", "assert candidate(3) == helper(3)")
    assert judged("def helper(x): return 0\ndef f(x): return 0", test).value == 0.0
    assert verdict_of("def f(x): return x and f(x - 1)", "assert f(3) == candidate(2) == 0").value == 1.0


def test_calls_may_depend_on_results():
    test = FunctionTest("f", "def f(x): return 2 * x", "x = 1\nfor _ in range(3): x = candidate(x)\nassert x % 27 == 0")
    assert judged("def f(x): return 3 * x", test).value == 1.0
    assert judged("def f(x): return 2 * x", test).value == 0.0
    long = FunctionTest("f", test.reference, f"x = 1\nfor _ in range({MOST_ROUNDS + 2}): x = candidate(x)")
    found = judged("def f(x): return 3 * x", long)
    assert found.value == 0.0 and f"{MOST_ROUNDS} rounds" in found.reason


def test_random_tests_make_the_same_calls_again():
    test = "import random\nfor n in set('abcdef'):\n    assert candidate(n + str(random.random()))[0] == n"
    assert verdict_of("import random\ndef f(x):\n    random.random()\n    return x", test).value == 1.0


def test_results_do_not_outlive_the_time_limit():
    source = "import atexit, time\natexit.register(time.sleep, 60)\ndef double(x): return x + x"
    found = judged(source, wall_seconds=1)
    assert found.value == 0.0 and "timeout" in found.reason


def test_dataclasses_of_a_program_find_their_module():
    source = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
    assert verdict_of(source + "def f(x): return P(x).x", "assert candidate(3) == 3").value == 1.0
