"""Tests that exceed their time limit over a solver's files: wrong if they end over the repair, else a failure."""

import asyncio
import json

import pytest

from arcforge_core.contracts.environment import Reply
from arcforge_core.episodes.scripted import play
from arcforge_rl.configs.environments import SweConfig
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.environment import LATE, Swe, writing
from arcforge_rl.swe.instance import FILE, Instance
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.patches import diff
from arcforge_rl.swe.results import TestRun

TEST = "from toy import one\n\n\ndef test_one():\n    assert one() == 1\n\n\ndef test_two():\n    pass\n"
ONE, TWO = "tests/test_toy.py::test_one", "tests/test_toy.py::test_two"
STALL = "import time\n\ntime.sleep(600)\n"


C_CODE = "int one(void) { return 0; }\n"
C_TEST = "int one(void);\nint main(void) { return one() != 1; }\n"
C_OTHER = "int main(void) { return 0; }\n"
C_STALL = '#include "/dev/ptmx"\n'
"""Its reader waits for keys of a terminal that has none."""


def environment_of(folder, path, bad, tests, names, language="python", seconds=20):
    """Builds an environment of one instance, in whose repair ``return 0`` becomes ``return 1``."""
    patch = diff({path: bad}, {path: bad.replace("return 0", "return 1")})
    (folder / "trees/toy-1").mkdir(parents=True)
    (folder / "trees/toy-1" / path).write_text(bad)
    made = diff({}, tests)
    one = Instance(
        "toy-1", "toy", "0" * 40, patch, made, "Repair.", *names, tree="toy-1", tests=tests, language=language
    )
    (folder / FILE).write_text(json.dumps(one.as_row()) + "\n")
    return Swe(SweConfig(path=str(folder), whole=True, seconds=seconds))


@pytest.fixture
def environment(tmp_path):
    """An environment in Python, whose tests have a bound."""
    bad = "def one():\n    return 0\n"
    return environment_of(tmp_path, "toy.py", bad, {"tests/test_toy.py": TEST}, ((ONE,), (TWO,)))


def outcome_of(environment, files):
    return asyncio.run(play(environment, environment.task(0), [*writing(files), Reply("Done.")]))[1]


@pytest.mark.nightly(reason="waits for time limits of real runs")
def test_files_that_stall_the_tests_are_wrong(environment):
    outcome = outcome_of(environment, {"toy.py": STALL})
    assert outcome.failure is None and outcome.reasons["reward"] == LATE and outcome.reward == 0.0


@pytest.mark.nightly(reason="waits for time limits of real builds")
def test_files_that_stall_the_build_are_wrong(tmp_path):
    tests = {"tests/test_one.c": C_TEST, "tests/test_other.c": C_OTHER}
    names = ("tests/test_one.c::main",), ("tests/test_other.c::main",)
    environment = environment_of(tmp_path, "toy.c", C_CODE, tests, names, "c", 20)
    try:
        for recipe in language_of("c").tools():
            ensure(recipe)
    except LayerError as error:
        pytest.skip(f"a toolchain cannot be fetched: {error}")
    assert asyncio.run(play(environment, environment.task(0), environment.oracle(environment.task(0))))[1].reward == 1
    outcome = outcome_of(environment, {"toy.c": C_STALL + C_CODE})
    assert outcome.failure is None and outcome.reasons["reward"] == LATE and outcome.reward == 0.0


MINE, REPAIR = {"new.py": "x = 1\n"}, {"toy.py": "def one():\n    return 1\n"}


def judged(environment, monkeypatch, run_of):
    """Returns the outcome of `MINE`, and over which files the tests ran; `run_of` gives their runs."""
    seen = []

    async def tested(instance, files):
        seen.append(files)
        return run_of(files)

    monkeypatch.setattr(environment, "tested", tested)
    return outcome_of(environment, MINE), seen


def test_a_machine_that_is_late_gives_no_verdict(environment, monkeypatch):
    late = TestRun(reason="the run did not end by itself (timeout None)", late=True)
    outcome, seen = judged(environment, monkeypatch, lambda files: late)
    assert outcome.failure is not None and outcome.failure.kind == "verifier" and not outcome.rewards
    assert seen == [MINE, REPAIR] * 2  # asked once more


def test_a_test_that_its_own_limit_ends_is_compared_with_the_repair(environment, monkeypatch):
    endless = TestRun({ONE: "failed", TWO: "passed", "x": "failed"}, whole=True, endless=frozenset({ONE, "x"}))
    good = TestRun({ONE: "passed", TWO: "passed", "x": "failed"}, whole=True, endless=frozenset({"x"}))
    outcome, seen = judged(environment, monkeypatch, lambda files: endless if files == MINE else good)
    assert outcome.failure is None and outcome.reasons["reward"] == LATE and seen == [MINE, REPAIR, MINE]
    outcome, _ = judged(environment, monkeypatch, lambda files: endless)
    assert outcome.failure is not None and outcome.failure.kind == "verifier" and not outcome.rewards
    wrong = TestRun({ONE: "failed", TWO: "failed"}, whole=True, endless=frozenset({ONE}))
    outcome, seen = judged(environment, monkeypatch, lambda files: wrong)
    assert outcome.failure is None and outcome.reward == 0.0 and seen == [MINE]  # TWO has failed in time
