"""Ascend's kernels call torch_npu's operators as their schemas and documents demand; each wrong call is noticed."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .mutations import MUTATIONS

SCRIPT = Path(__file__).parent / "kernel_checks.py"
pytestmark = pytest.mark.slow(reason="imports torch in a process of its own, which can have one such device")


@pytest.fixture(scope="module")
def found():
    result = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_kernels_equal_the_reference_through_the_operators(found):
    assert len(found["errors"]) == 22
    assert all(error <= 2e-2 for error in found["errors"].values()), found["errors"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_wrong_call_is_noticed(found, mutation):
    assert found["mutations"][mutation.name], "the changed call passed"


def test_wrong_calls_are_of_each_kind():
    kinds = Counter(m.kind for m in MUTATIONS)
    assert len(MUTATIONS) >= 40 and set(kinds) == {"name", "order", "dtype", "layout", "lengths", "indices", "meaning"}
    assert min(kinds.values()) >= 5, kinds


def test_a_wrong_call_is_noticed_for_its_own_fault(found):
    """Names are refused by the schema, lengths and indices by the documents' demands or by wrong results."""
    for mutation in MUTATIONS:
        said = found["mutations"][mutation.name]
        if mutation.kind == "name":
            assert "Unknown keyword argument" in said, (mutation.name, said)
        else:
            assert said.startswith(("VendorError: npu_", "error ")), (mutation.name, said)


def test_the_int8_indexer_is_a_choice_and_selects_almost_the_same_keys(found):
    assert 0.9 < found["same keys"] <= 1
