"""Tests that exceed their time limit over a solver's files: wrong if they end over the repair, else a failure."""

import asyncio
import json

import pytest

from arcforge_core.contracts.environment import Reply
from arcforge_core.episodes.scripted import play
from arcforge_rl.configs.environments import SweConfig
from arcforge_rl.swe.environment import LATE, Swe, writing
from arcforge_rl.swe.instance import FILE, Instance
from arcforge_rl.swe.patches import diff
from arcforge_rl.swe.results import TestRun

TEST = "from toy import one\n\n\ndef test_one():\n    assert one() == 1\n\n\ndef test_two():\n    pass\n"
NAMES = ("tests/test_toy.py::test_one",), ("tests/test_toy.py::test_two",)
STALL = "import time\n\ntime.sleep(600)\n"


@pytest.fixture
def environment(tmp_path):
    """Builds an environment of one instance, whose tests have a bound."""
    bad, good = "def one():\n    return 0\n", "def one():\n    return 1\n"
    patch, tests = diff({"toy.py": bad}, {"toy.py": good}), {"tests/test_toy.py": TEST}
    (tmp_path / "trees/toy-1").mkdir(parents=True)
    (tmp_path / "trees/toy-1/toy.py").write_text(bad)
    one = Instance("toy-1", "toy", "0" * 40, patch, diff({}, tests), "Repair.", *NAMES, tree="toy-1", tests=tests)
    (tmp_path / FILE).write_text(json.dumps(one.as_row()) + "\n")
    return Swe(SweConfig(path=str(tmp_path), whole=True, seconds=6))


def outcome_of(environment, files):
    return asyncio.run(play(environment, environment.task(0), [*writing(files), Reply("Done.")]))[1]


@pytest.mark.nightly(reason="waits for time limits of real runs")
def test_files_that_stall_the_tests_are_wrong(environment):
    outcome = outcome_of(environment, {"toy.py": STALL})
    assert outcome.failure is None and outcome.reasons["reward"] == LATE and outcome.reward == 0.0


def test_a_machine_that_is_late_gives_no_verdict(environment, monkeypatch):
    runs = []

    async def tested(instance, files):
        runs.append(files)
        return TestRun(reason="the run did not end by itself (timeout None)", late=True)

    monkeypatch.setattr(environment, "tested", tested)
    outcome = outcome_of(environment, {"new.py": "x = 1\n"})
    assert outcome.failure is not None and outcome.failure.kind == "verifier" and not outcome.rewards
    mine, repair = {"new.py": "x = 1\n"}, {"toy.py": "def one():\n    return 1\n"}
    assert runs == [mine, repair] * 2  # asked once more
