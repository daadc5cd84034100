"""The fake chip takes any vendor's name, and the vendor's operators take only what their schemas and checks allow."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "vendors.py"


@pytest.mark.parametrize("name", ["npu", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("musa", "mlu", "gcu"))])
@pytest.mark.slow(reason="imports torch in a process of its own, which can have one such device")
def test_a_vendor_s_operator_refuses_wrong_calls(name):
    result = subprocess.run([sys.executable, SCRIPT, name], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert "factor" in said["name"] and "Tensor" in said["order"], said
    assert said["layout"] == "scaled: x must be contiguous"
    assert "CPU" in said["host"] and "on cpu" in said["mixed"], said
    assert said["int64"] == f"{name} has no int64: empty"
