"""Cases as data: NumPy alone reads them, and repeats an op and its gradient."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from arcforge_core.cli import conformance
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.case_export import export_cases


def test_numpy_repeats_an_exported_op(tmp_path, capsys):
    assert conformance.main(["--export", str(tmp_path), "--op", "swiglu", "--seed", "3"]) == 0
    about, tensors = json.loads((tmp_path / "swiglu.json").read_text()), load_file(tmp_path / "swiglu.safetensors")
    assert capsys.readouterr().out == f"{len(about['cases'])} cases with --seed 3: {tmp_path}\n"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["swiglu.json", "swiglu.safetensors"]
    for case in about["cases"]:
        gate, up = (tensors[value["tensor"]].astype(np.float64) for value in case["arguments"].values())
        sigmoid = 1 / (1 + np.exp(-gate))
        np.testing.assert_allclose(gate * sigmoid * up, tensors[case["expected"]["output"]["tensor"]], rtol=1e-12)
        if "gradients" in case:
            cotangent = tensors[case["cotangents"][0]["tensor"]]
            gradient = tensors[case["gradients"]["up"]["tensor"]]
            np.testing.assert_allclose(cotangent * gate * sigmoid, gradient, rtol=1e-12)


MIXTURES = ("moe_experts", "quant_experts", "moe", "quant_moe")


@pytest.mark.parametrize("op", [pytest.param(op, marks=pytest.mark.nightly) if op in MIXTURES else op for op in SPECS])
def test_every_op_is_exported_with_all_that_its_cases_name(op, tmp_path):
    count = export_cases(tmp_path, [op], seed=1)
    about, tensors = json.loads((tmp_path / f"{op}.json").read_text()), load_file(tmp_path / f"{op}.safetensors")
    assert len(about["cases"]) == count > 0 and about["tolerance"]["float32"] == SPECS[op].tolerance[torch.float32]
    named = json.dumps(about)
    assert all(f'"{name}"' in named for name in tensors)
    expected = len(SPECS[op].outputs) + len(SPECS[op].writes)
    assert all(len(case["expected"]) == expected for case in about["cases"])
