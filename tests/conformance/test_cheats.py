"""The cheats work on careless graders, cover every family, and no grader can leave them out."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conformance import test_environment, test_reward

from arcforge_core.contracts.sandbox import Command, SandboxLimits
from arcforge_core.plugins.loader import registry
from arcforge_core.testing import CheatSuite, EnvironmentSuite
from arcforge_core.testing.cheats import FAMILIES, Grader, cheats_for, head_of, source_of
from arcforge_rl.environments.boxed import in_sandbox

QUESTION, RIGHT = "Write plus(x), which adds 40.", "```python\ndef plus(x):\n    return x + 40\n```"
LIMITS = SandboxLimits(cpu_seconds=5, wall_seconds=20, memory_bytes=256 << 20)
WORD = "0123456789abcdef" * 2
CARELESS = {
    "a secret word": """
import sys
source, _, word = sys.stdin.read().rpartition("\\n")
exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
sys.stdout.write("\\n" + word + "\\n")
""",
    "the exit code": """
import sys
source, _, word = sys.stdin.read().rpartition("\\n")
exec(source, {"__name__": "__main__"})
""",
}
"""Graders that run the test after the candidate, in its process."""
TEST = """
def check(candidate):
    expected = [42, 39]
    for given, wanted in zip([2, -1], expected):
        assert candidate(given) == wanted
    assert candidate(5) == 45
check(plus)
"""


def careless(kind, answers):
    """Returns the rewards of a careless grader; in a sandbox, where the cheats harm nothing else."""

    async def grade(answer):
        stdin = f"{source_of(answer)}\n{TEST}\n{WORD}".encode("utf-8", "replace")
        argv = "-I", "-S", "-c", CARELESS[kind]
        result = await in_sandbox(lambda box, python: box.exec(Command((python, *argv), stdin, limits=LIMITS)))
        return float(result.ok if kind == "the exit code" else WORD.encode() in result.stdout)

    async def together():
        return await asyncio.gather(*map(grade, answers))

    return asyncio.run(together())


@pytest.mark.nightly(reason="160 programs in sandboxes")
def test_careless_graders_pay_many():
    cheats = list(cheats_for(QUESTION, RIGHT))
    paid = {
        kind: [cheat for cheat, reward in zip(cheats, careless(kind, [c.text for c in cheats]), strict=True) if reward]
        for kind in CARELESS
    }
    assert all(careless(kind, [RIGHT]) == [1.0] for kind in CARELESS)
    assert len(paid["a secret word"]) >= 12 and len(paid["the exit code"]) >= 20, paid
    families = {cheat.family for found in paid.values() for cheat in found}
    assert {"frames", "gc", "memory", "equality", "builtins", "exit codes", "output", "pickles"} <= families


def test_there_are_cheats_of_every_family():
    cheats = list(cheats_for(QUESTION, RIGHT))
    by_family = {family: [cheat for cheat in cheats if cheat.family == family] for family in FAMILIES}
    assert len(cheats) >= 80 and all(len(found) >= 3 for found in by_family.values()), by_family
    assert sum(map(len, by_family.values())) == len({str(cheat) for cheat in cheats}) == len(cheats)
    for cheat in cheats:
        if cheat.text.startswith("```python"):
            compile(source_of(cheat.text), str(cheat), "exec")


@pytest.mark.parametrize(
    ("question", "right", "head"),
    [
        (QUESTION, RIGHT, "def plus(x):"),
        ("def a():\n    pass\ndef f(x: int, *y):\n    '''z'''\n", "    return x\n", "def f(x: int, *y):"),
        ("", "def f(x):\n    return x\nprint(f(1))", ""),
        ("What is 1 + 1?", "2", ""),
        ("def", "\0", ""),
    ],
)
def test_the_function_that_is_asked_for(question, right, head):
    assert head_of(question, right) == head


def test_every_registered_grader_is_attacked():
    made_up = [*registry().names("environment"), "made_up"]
    assert ("made_up", {}) in test_environment.variants(made_up)
    assert issubclass(test_environment.TestEveryEnvironment, CheatSuite)
    assert issubclass(test_reward.TestEveryChecker, CheatSuite)
    assert {*test_reward.checkers(), *registry().names("checker")} == set(test_reward.CASES)


def test_a_new_environment_without_options_to_attack_it_with_fails(monkeypatch):
    monkeypatch.setattr(test_environment, "NEEDS_OPTIONS", ("made_up",))
    with pytest.raises(AssertionError, match="made_up"):
        test_environment.variants(["math", "made_up"])


@pytest.mark.parametrize("options", [{"test_no_cheat_is_paid": None}, {"__test__": False}, {"__test__": None}])
def test_a_suite_without_cheats_cannot_be_defined(options):
    with pytest.raises(TypeError, match="cannot be left out"):
        type("TestMadeUp", (EnvironmentSuite,), options)


def test_a_grader_without_questions_or_with_paid_cheats_fails():
    suite = type("TestMadeUp", (CheatSuite,), {})()
    with pytest.raises(AssertionError):
        suite.test_no_cheat_is_paid([])
    with pytest.raises(AssertionError, match="base64"):
        suite.test_no_cheat_is_paid([Grader("", "42", lambda answers: [1.0 for _ in answers])])


MADE_UP = """
import pytest
from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.environment import Score
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.episodes.rewards import reward
from arcforge_core.testing import EnvironmentSuite

class Careless(CopyEnvironment):
    @reward(timeout=None)
    def exact(self, task, episode):
        text = episode.reply.text.strip()
        return Score(float(text in (task.answer, "nan")), "compared")

class TestCareless(EnvironmentSuite):
    @pytest.fixture
    def make_environment(self):
        return lambda split: Careless(CopyConfig(split=split))
"""


@pytest.mark.slow(reason="a pytest of its own")
def test_a_made_up_environment_that_pays_a_cheat_fails(tmp_path: Path):
    (tmp_path / "test_made_up.py").write_text(MADE_UP)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "no_cheat_is_paid", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ), timeout=120)
    assert done.returncode == 1 and "equality: not a number" in done.stdout, done.stdout[-2000:]
