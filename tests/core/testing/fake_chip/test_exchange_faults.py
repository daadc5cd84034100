"""Faults of collectives: each is found in the process that has it, and a chip without faults has none."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from arcforge_core.testing.exchanges import EXCHANGES

SCRIPT = Path(__file__).parent / "exchanges.py"
FAULTS = [
    ("all_reduce", "the second rank keeps what it had", "rank 1, float32: the sum: row"),
    ("all_reduce", "a mean for a sum", "rank 0, float32: the sum: row"),
    ("all_gather", "ranks are gathered in reverse", "float32: the rows: row 0"),
    ("broadcast", "every broadcast is the first rank's", "float32: the rows: row 0"),
    ("reduce_scatter", "the tail is lost", "rank 2, float32: the part: row 0"),
    ("all_to_all", "even parts stay where they are", "float32: the rows of .2, 2, 2.: row"),
    ("all_to_all", "an exchange spoils its input", "float32: the input: row"),
    ("uneven_all_to_all", "an empty part shifts the rows", "float32: the rows of"),
    ("uneven_all_to_all", "uneven parts arrive last first", "float32: the rows of"),
    ("uneven_all_to_all", "integers are sent with 32 bits", "int64: the rows of"),
    ("uneven_all_to_all", "uneven parts are refused", "it raises RuntimeError: splits of different sizes"),
    ("barrier", "a barrier that does not wait", r"it left 0\.\d+ s before the last process came"),
]


@pytest.mark.slow(reason="starts three processes that import torch")
def test_faults_of_collectives_are_found_and_a_chip_without_faults_has_none():
    asked = [(name, None) for name in EXCHANGES] + [(name, fault) for name, fault, _ in FAULTS]
    command = [sys.executable, str(SCRIPT), json.dumps(asked)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    by_rank = json.loads(result.stdout)
    for number, (name, fault) in enumerate(asked):
        said = "; ".join(filter(None, (found[number] for found in by_rank)))
        if fault is None:
            assert said == "", name
        else:
            assert re.search(FAULTS[number - len(EXCHANGES)][2], said), (fault, said)
