"""Every reference against a second computation that shares no code with it."""

import numpy as np
import pytest
import torch

from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.op_inputs import op_cases
from support import numpy_ops


def test_every_op_has_a_second_computation_and_cases():
    assert numpy_ops.OPS.keys() == SPECS.keys()


@pytest.mark.parametrize("op", SPECS)
def test_the_reference_equals_numpy(op):
    for case in op_cases(op):
        inputs = case.inputs(torch.float64, "cpu")
        arrays = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
        ours, theirs = SPECS[op].reference(**inputs), numpy_ops.OPS[op](**arrays)
        for got, wanted in zip(*(x if isinstance(x, tuple) else (x,) for x in (ours, theirs)), strict=True):
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-9, atol=1e-9, err_msg=f"{op}, {case.name}")
