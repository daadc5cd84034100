import pytest
import torch

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.large_inputs import large_case
from arcforge_core.testing.op_case import FLOAT32_ARGUMENTS
from arcforge_core.testing.op_inputs import op_cases


@pytest.mark.parametrize("op", sorted(SPECS))
def test_cases_have_the_sizes_that_modules_pass_and_another_seed_the_same_shapes(op):
    first, second = ([*op_cases(op, seed), large_case(op, seed)] for seed in (1, 2))
    for case, other in zip(first, second, strict=True):
        assert set(case.sizes) == set(SPECS[op].sizes)
        assert case.name == other.name and case.args.keys() == other.args.keys()
        for name, value in case.args.items():
            if isinstance(value, torch.Tensor):
                assert value.shape == other.args[name].shape, name


@pytest.mark.parametrize("op", sorted(SPECS))
def test_the_same_seed_gives_the_same_inputs(op):
    for first, second in zip(op_cases(op, seed=3), op_cases(op, seed=3), strict=True):
        assert first.name == second.name
        for name, value in first.args.items():
            other = second.args[name]
            value, other = (x.table_NP if isinstance(x, Pages) else x for x in (value, other))
            torch.testing.assert_close(value, other, rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("op", sorted(SPECS))
def test_strided_inputs_hold_the_same_values_with_gaps(op):
    for case in op_cases(op):
        dense, strided = (case.inputs(torch.bfloat16, "cpu", strided=s) for s in (False, True))
        for name, value in dense.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                torch.testing.assert_close(strided[name], value, rtol=0, atol=0, equal_nan=True)
                assert value.dtype == (torch.float32 if name in FLOAT32_ARGUMENTS else torch.bfloat16)
                if value.ndim > 1 and value.numel() > value.shape[-1]:
                    assert not strided[name].is_contiguous()
