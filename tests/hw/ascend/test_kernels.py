"""Ascend's kernels call torch_npu's operators as their schemas and documents demand; each wrong call is noticed."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from arcforge_core.contracts.hardware import OpCall
from arcforge_core.errors import ConfigError
from arcforge_hw.ascend.backend import Ascend
from arcforge_hw.configs import AscendConfig

from .mutations import MUTATIONS

SCRIPT = Path(__file__).parent / "kernel_checks.py"
pytestmark = pytest.mark.slow(reason="imports torch in a process of its own, which can have one such device")


def run(*arguments):
    result = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found():
    return run()


@pytest.mark.nightly
def test_every_kernel_passes_the_conformance_kit_in_bfloat16():
    rows = run("kit")
    assert [row for row in rows if row[2] == "fail"] == []
    passed = {kernel for kernel, dtype, verdict, _ in rows if (dtype, verdict) == ("bfloat16", "pass")}
    assert {row[0] for row in rows} - passed == {"ascend.newton_schulz.gram"}


def test_kernels_equal_the_reference_through_the_operators(found):
    assert len(found["errors"]) == 23
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


GLM5 = {"hidden": 6144, "query_latent": 2048, "latent": 512, "heads": 64, "nope": 192, "rotary": 64}
DEEPSEEK = {"hidden": 7168, "query_latent": 1536, "latent": 512, "heads": 128, "nope": 128, "rotary": 64}


@pytest.mark.parametrize(
    ("sizes", "documents", "runs"),
    [(GLM5, "early", False), (GLM5, "late", True), (DEEPSEEK, "early", True), (DEEPSEEK, "off", None)],
)
def test_the_prologue_is_chosen_by_its_documents_sizes(sizes, documents, runs):
    """GLM-5's query latent and heads are not in the early documents: its parts run."""
    kernels = Ascend(AscendConfig(mla_prologue=documents)).kernels()
    found = [kernel for kernel in kernels if kernel.op == "mla_project"]
    assert [bool(kernel.layouts) for kernel in found] == ([] if runs is None else [False, True])
    for kernel in found:
        verdict = kernel.supports(OpCall("mla_project", "npu", torch.bfloat16, False, sizes))
        assert verdict.ok == runs and ("query_latent of (1536,), not 2048" in verdict.reason) == (not runs)


def test_other_documents_of_the_prologue_are_an_error():
    with pytest.raises(ConfigError, match=r"hardware\.mla_prologue"):
        AscendConfig(mla_prologue="newest")


def test_the_int8_indexer_is_a_choice_and_selects_almost_the_same_keys(found):
    assert 0.9 < found["same keys"] <= 1
