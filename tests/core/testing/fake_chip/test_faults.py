"""Faults that the chip's vendor could ship: single operators look right, and a model on the chip is wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).parent / "models.py"
TRAINING = {
    None: "",
    "a repeated token keeps its last gradient": "the gradient norm of step 1",
    "the optimizer forgets its momentum": "loss of step 2",
    "the optimizer does not square": "loss of step 2",
    "products in bfloat16": "loss.* of step 1",
    "softmax without a gradient": "the gradient norm of step 1",
    "norms one per cent too large": "the gradient norm of step 1",
}
SAVE = {None: "", "copies are cut to bfloat16": "was saved with other bits"}
UPDATE = {None: "", "copies into tensors are cut to bfloat16": "has other bits after an update"}
DECODE = {
    None: "",
    "the last row written to a cache is lost": "token .* on the host",
    "positions have six bits": "after a prompt of 58",
    "argmax is coarse": "token 1 after",
    "sorts ascend": "token 1 after",
}


def check(**wanted):
    """Runs the kit on the chip with each fault, and compares what it says."""
    asked = [(name.replace("_", " "), fault) for name, faults in wanted.items() for fault in faults]
    command = [sys.executable, str(MODELS), json.dumps(asked)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    for name, faults in wanted.items():
        for fault, pattern in faults.items():
            said = found[fault or name.replace("_", " ")]
            assert re.search(pattern, said) if fault else said == "", (fault or name, said)


@pytest.mark.slow(reason="trains eight models on a chip simulated in Python, in a process of its own")
def test_faults_of_training_are_found_and_a_chip_without_faults_has_none():
    check(training=TRAINING)


@pytest.mark.slow(reason="decodes with models on a chip simulated in Python, in a process of its own")
def test_faults_of_copies_and_of_decoding_are_found_and_a_chip_without_faults_has_none():
    check(save=SAVE, weight_update=UPDATE, greedy_decode=DECODE)
