"""Faults of autocast and of compiled code."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "programs.py"
FAULTS = [
    ("autocast", "products", "autocast casts nothing", "matmul is torch.float32 instead of torch.bfloat16"),
    ("autocast", "products", "autocast knows float16 only", "matmul is torch.float16 instead"),
    ("autocast", "losses", "losses stay narrow", "a loss is torch.bfloat16 instead"),
    ("autocast", "ends", "products stay narrow", "a product where it is disabled is torch.bfloat16"),
    ("autocast", "gradients", "casts have no gradient", "does not require grad"),
    ("autocast", "updates", "casts are kept for ever", "a product after an update has an error"),
    ("compile", "updates", "weights are compiled as constants", "the output after an update differs"),
    ("compile", "in place", "compiled code works on copies", "an argument changed in place differs"),
    ("compile", "in place", "compiling runs the code", "an argument changed in place differs"),
    ("compile", "gradients", "compiled code has half of its gradients", "not have been used|require grad"),
    ("compile", "shapes", "compiled code keeps its number of rows", r"the output of 9 rows is \(8, 8\)"),
]


@pytest.mark.slow(reason="imports torch and its compiler in a process of its own")
def test_faults_of_autocast_and_of_compiled_code_are_found_and_a_chip_without_faults_has_none():
    asked = [fault[:3] for fault in FAULTS]
    command = [sys.executable, str(SCRIPT), json.dumps(asked)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert set(said["clean"].values()) == {""} and len(said["clean"]) == 10
    assert said["false no"] == ["capabilities say no autocast, but the device has it"]
    for _, _, fault, pattern in FAULTS:
        assert re.search(pattern, said[fault]), (fault, said[fault])
