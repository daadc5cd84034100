"""Every checker that the registry lists, as the reward of a record: what it accepts, and what it bears."""

import functools

import pytest

from arcforge_core.checkers import build_checker
from arcforge_core.plugins.loader import registry
from arcforge_core.testing import CheckerSuite

MEDIAN = "def median_low(data):\n    data = sorted(data)\n    return data[(len(data) - 1) // 2]\n"
WRONG_MEDIANS = (
    MEDIAN.replace("- 1", "+ 1"),
    MEDIAN.replace("(data)", "(data, k)", 1),
    MEDIAN.replace("median_low", "median"),
    "import os\nos._exit(0)\n" + MEDIAN,
    'def median_low(data):\n    """No tests."""\n',
    "def median_low(data):\n    raise SystemExit(0)\n",
    "def median_low(data):\n    import os\n    os._exit(0)\n",
    "@print\n" + MEDIAN,
    "def median_low(data):\n    import statistics as library\n    return library.median_low(data)\n",
    "def median_low(data):\n    return next(v for m in sys.modules.values() for v in [m])\n",
    "print('ok')",
)
LOOP = "total = 0\nfor n in range(4):\n    total += n\nprint(total)\nprint('done')\n"


def puzzle_arguments():
    from arcforge_rl.problems.puzzle_checker import puzzle, question_hash

    _, entry = puzzle("spell_backward", 3, 0)
    return {"dataset": "spell_backward", "seed": 3, "index": 0, "question": question_hash(entry)}


CASES = {
    "exact": (
        lambda: {"answer": "forty two"},
        ["forty two", " forty two\n"],
        ["forty  two", "Forty two", "forty two."],
    ),
    "number": (
        lambda: {"answer": "-1234"},
        ["-1234", "it is -1,234", "x = -1234.0", "first 5, then -1234."],
        ["1234", "-1235", "-12345", "-1234 or 5", "-1234x", "-12,34", "\u0661", "x-1234.5"],
    ),
    "reasoning_gym": (puzzle_arguments, ["reyornac"], ["canroyer", "reyornac canroyer", "zzz", "r"]),
    "python_output": (lambda: {"program": LOOP}, ["6\ndone", "```\n6\ndone\n```"], ["6", "done", "6 done", LOOP]),
    "python_doctest": (
        lambda: {"module": "statistics.py", "function": "median_low"},
        [MEDIAN, f"Here it is:\n```python\n{MEDIAN}```\n"],
        WRONG_MEDIANS,
    ),
}


@functools.cache
def checker_of(name):
    return build_checker(name, CASES[name][0]())


def checkers():
    """Returns the rewards that check answers; the others measure episodes (`tests/rl/rewards/test_rules.py`)."""
    found = {name: registry().get("reward", name).load() for name in registry().names("reward")}
    assert all(hasattr(target, "check") or hasattr(target, "measure") for target in found.values())
    return [name for name, target in found.items() if hasattr(target, "check")]


@pytest.fixture(params=checkers())
def name(request):
    return request.param


class TestEveryChecker(CheckerSuite):
    @pytest.fixture
    def checker(self, name):
        return checker_of(name)

    @pytest.fixture
    def right(self, name):
        return CASES[name][1]

    @pytest.fixture
    def wrong(self, name):
        return CASES[name][2]
