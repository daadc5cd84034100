"""HumanEval: a whole function or its rest passes; rows that lack something are named."""

import json

import pytest

from arcforge_core.contracts.environment import Reply
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.testing.environment_suite import score
from arcforge_rl.configs.environments import HumanEvalConfig
from arcforge_rl.environments.human_eval import HumanEval

ROW = {
    "task_id": "T/0",
    "prompt": 'def helper(x):\n    return x + 1\n\n\ndef next_one(x):\n    """Returns what follows."""\n',
    "entry_point": "next_one",
    "canonical_solution": "    return helper(x)\n",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(-1) == 0\n",
}


def written(tmp_path, rows, **options):
    path = tmp_path / "functions.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return HumanEval(HumanEvalConfig(path=str(path), **options))


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("    return helper(x)\n", 1.0),
        ("def next_one(x):\n    return helper(x)\n", 1.0),
        ("Here:\n```python\ndef next_one(x):\n    return x + 1\n```\nDone.", 1.0),
        ("    return x\n", 0.0),
        ("def other(x):\n    return helper(x)\n", 0.0),
        ("    while True: pass\n", 0.0),
        ("\ud800", 0.0),
        ("```python\n" * 30, 0.0),
        ("#" * 60_000, 0.0),
    ],
)
def test_functions(tmp_path, text, reward):
    rows = [ROW | {"task_id": f"T/{n}"} for n in range(10)]
    environment = written(tmp_path, rows, seconds=1.0 if "while True" in text else 60.0)
    found = score(environment, environment.task(0), [Reply(text)])
    assert found.reward == reward and found.reasons["reward"]


def test_sides(tmp_path):
    rows = [ROW | {"task_id": f"T/{n}"} for n in range(30)]
    sides = [written(tmp_path, rows, split=split) for split in ("train", "heldout")]
    assert sum(side.num_tasks for side in sides) == 30
    with pytest.raises(ConfigError, match="no function is on this side"):
        written(tmp_path, [])


def test_the_package_has_its_functions():
    sides = [HumanEval(HumanEvalConfig(split=split)) for split in ("train", "heldout")]
    assert sum(side.num_tasks for side in sides) == 164


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({k: v for k, v in ROW.items() if k != "test"}, "the row has no test"),
        (ROW | {"canonical_solution": None}, "no canonical_solution"),
        ("{", "not JSON"),
        ("[]", "the row has no task_id"),
    ],
)
def test_rows_that_lack_something_are_named(tmp_path, row, reason):
    with pytest.raises(DataError, match=rf"functions\.jsonl:2: .*{reason}"):
        written(tmp_path, [ROW, row])


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        HumanEval(HumanEvalConfig(path=str(tmp_path / "none.jsonl")))
    (tmp_path / "x.jsonl.gz").write_text("no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        HumanEval(HumanEvalConfig(path=str(tmp_path / "x.jsonl.gz")))
