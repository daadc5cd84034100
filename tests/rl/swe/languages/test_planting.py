"""Planted tests: each assertion that tests use occurs among them, and each of them fails where nothing is forged."""

import asyncio
import shutil
import subprocess
import sys

import pytest

from arcforge_rl.swe.languages.javascript import planting as javascript
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.languages.python import planting as python
from arcforge_rl.swe.languages.python.cheating import LENIENT
from arcforge_rl.swe.languages.signed import kinds_in, planted
from arcforge_rl.swe.running import runs_of

PYTHON = language_of("python")
UNITTEST = """import unittest
from toy import one


class T(unittest.TestCase):
    def test_one(self):
        self.assertEqual(one(), 1)

    def test_other(self):
        self.assertTrue(one() == 1)
"""


def test_assertions_are_those_of_the_tests():
    texts = ["self.assertEqual(f(), 1)", "with pytest.raises(X): pass  # asserts"]
    assert kinds_in(texts, python.KINDS, "assert") == ["assertEqual", "raises"]
    assert kinds_in(["nothing"], python.KINDS, "assert") == ["assert"]


@pytest.mark.parametrize("kinds", [["x"], list("abcdefghij")])
def test_each_assertion_is_planted(kinds):
    words, tests = planted(kinds)
    assert {one.kind for one in tests} == set(kinds) and len(tests) >= 2
    assert len({one.words for one in tests}) == len(tests) and len(words) == 3
    assert all(one.made[:-1] == one.wanted[:-1] and one.made[-1] < one.wanted[-1] for one in tests)


def test_names_of_planted_files_differ():
    taken = set()
    for _ in range(1500):  # more than there are names of three words
        words, _ = planted(["x"], taken)
        assert words not in taken
        taken.add(words)
    assert {len(words) for words in taken} == {3, 4, 5}


def test_each_of_pythons_fails(tmp_path):
    words, tests = planted(python.KINDS)
    (tmp_path / "test_planted.py").write_text(python.canary(words, tests))
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--tb=no", str(tmp_path)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = done.stdout.splitlines()[-1]
    assert told.startswith(f"{len(tests)} failed") and "passed" not in told and "error" not in told, done.stdout


@pytest.mark.parametrize("strict", ["", "import own from 'assert/strict';\n"])
def test_each_of_nodes_fails(tmp_path, strict):
    if (node := shutil.which("node")) is None:
        pytest.skip("node is not installed")
    _, tests = planted(list(javascript.ASSERT))
    (tmp_path / "a.mjs").write_text(strict + javascript.inside("a.mjs", strict, "node", tests))
    done = subprocess.run([node, "--test-reporter=tap", "a.mjs"], cwd=tmp_path, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert f"# fail {len(tests)}" in lines and "# pass 0" in lines, done.stdout + done.stderr
    assert "ERR_ASSERTION" in done.stdout and "is not a function" not in done.stdout


@pytest.mark.slow(reason="two runs of pytest in sandboxes")
def test_code_that_makes_the_assertions_of_unittest_agree_is_noticed(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_one.py").write_text(UNITTEST)
    for code, whole in (("", True), (LENIENT, False)):
        (tmp_path / "toy.py").write_text(f"def one():\n    return 0\n{code}")
        [run] = asyncio.run(runs_of(PYTHON, tmp_path, {}, (), ["tests/test_one.py"], 300, [0]))
        assert run.whole is whole and run.passed("tests/test_one.py::T::test_one") is not whole
