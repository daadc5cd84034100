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
RESTORED = r"^device rng: \w+ \w+ drawn after the state was restored are others$"
DEVICE = {
    None: "",
    "a restored generator stays where it is": RESTORED,
    "a restored generator begins again": RESTORED,
    "a restored generator forgets half a pair": RESTORED,
    "copies cut integers to 32 bits": "^device int64: capabilities say int64, but int64 values are cut by a copy",
}
FALSE_YES = {
    None: "device float64: capabilities say float64, but it raises RuntimeError: npu has no float64: empty; "
    "device pinned_memory: capabilities say pinned_memory, but it raises NotImplementedError: .*"
}
FALSE_NO = {
    None: "device int64: capabilities say no int64, but the device has it; "
    "device bf16: capabilities say no bf16, but the device has it"
}
"""Claims that no fault belongs to."""


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
            assert re.search(pattern, said) if fault else re.fullmatch(pattern, said), (fault or name, said)


@pytest.mark.slow(reason="trains eight models on a chip simulated in Python, in a process of its own")
def test_faults_of_training_are_found_and_a_chip_without_faults_has_none():
    check(training=TRAINING)


@pytest.mark.slow(reason="decodes with models on a chip simulated in Python, in a process of its own")
def test_faults_of_copies_and_of_decoding_are_found_and_a_chip_without_faults_has_none():
    check(save=SAVE, weight_update=UPDATE, greedy_decode=DECODE, device=DEVICE, false_yes=FALSE_YES, false_no=FALSE_NO)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_no_seed_finds_a_fault_of_a_model_on_a_chip_without_faults():
    result = subprocess.run([sys.executable, str(MODELS), "[]", "20"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert len(found) == 80 and {name: said for name, said in found.items() if said} == {}
