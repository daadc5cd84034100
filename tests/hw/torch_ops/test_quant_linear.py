"""Products of integers: rows that a device wants more of are added, and taken away again."""

import pytest
import torch

import arcforge_hw.torch_ops.quant_linear as kernel
from arcforge_core.ops.quant import INT4, INT8, quantise
from arcforge_core.ops.specs import SPECS


@pytest.mark.parametrize("form", [INT8, INT4])
@pytest.mark.parametrize("rows", [1, 16, 17, 30])
def test_few_rows_are_filled_up(rows, form, monkeypatch):
    draw, given = torch.Generator().manual_seed(0), []
    monkeypatch.setenv("ARCFORGE_CALIBRATION", "int8=2,int8_in_fp32=1")
    monkeypatch.setitem(kernel.LEAST_ROWS, "cpu", 17)
    product = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: given.append(len(a)) or product(a, b))
    weight, scale_NG = quantise(torch.randn(8, 16, generator=draw), form)
    args = torch.randn(rows, 16, generator=draw), weight, scale_NG, torch.randn(8, generator=draw)
    torch.testing.assert_close(kernel.quant_linear(*args), SPECS["quant_linear"].reference(*args))
    assert given == [max(rows, 17)]
