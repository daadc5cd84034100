"""Products of int8 matrices: exact in float32 too, and chosen by a measurement."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_hw.torch_ops import int8_product
from arcforge_hw.torch_ops.int8_product import INPUTS, fp32_product
from arcforge_hw.torch_ops.quant_linear import quant_linear

FORCED = {"int8": "int8=2,int8_in_fp32=1", "fp32": "int8=1,int8_in_fp32=2"}


@given(
    st.integers(1, 9), st.sampled_from([1, 31, 512, INPUTS, INPUTS + 1, 3 * INPUTS - 5]), st.integers(1, 9),
    st.sampled_from([1, 100, 128]), st.integers(0, 2**31),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_float32_adds_integers_exactly(rows, inputs, outputs, least, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(-128, 1 - least + 128, (rows, inputs), dtype=torch.int8, generator=draw)
    weight = torch.randint(-128, 1 - least + 128, (outputs, inputs), dtype=torch.int8, generator=draw)
    wanted = (x.long()[:, None] * weight.long()).sum(-1)
    assert torch.equal(fp32_product(x, weight).long(), wanted)


def test_the_largest_sums_are_exact():
    for inputs in (INPUTS, INPUTS + 1):
        x = torch.full((1, inputs), -128, dtype=torch.int8)
        assert int(fp32_product(x, x)) == inputs * 128**2
        x[0, 0] = 127
        assert int(fp32_product(x, x)) == (inputs - 1) * 128**2 + 127**2


@pytest.mark.parametrize("name", FORCED)
def test_figures_choose_the_product(monkeypatch, name):
    calls = []
    monkeypatch.setenv("ARCFORGE_CALIBRATION", FORCED[name])
    monkeypatch.setattr(int8_product, "fp32_product", lambda *args: calls.append(args) or fp32_product(*args))
    x = torch.ones(2, 32, dtype=torch.int8)
    assert int8_product.int8_product(x, x).tolist() == [[32, 32], [32, 32]]
    assert len(calls) == (name == "fp32")
    words = "in fp32, exactly" if name == "fp32" else "in int8"
    assert int8_product.explained() == f"many rows with int8 weights are multiplied {words} (ARCFORGE_CALIBRATION)"


@pytest.mark.parametrize("inputs", [96, 2080])
def test_layers_give_the_same_bits_either_way(monkeypatch, inputs):
    draw = torch.Generator().manual_seed(inputs)
    x = torch.randn(40, inputs, generator=draw)
    weight = torch.randint(-127, 128, (24, inputs), dtype=torch.int8, generator=draw)
    scale = torch.rand(24, 1, generator=draw)
    found = []
    for figures in FORCED.values():
        monkeypatch.setenv("ARCFORGE_CALIBRATION", figures)
        found.append(quant_linear(x, weight, scale))
    assert torch.equal(*found)


def test_both_products_are_measured():
    figures = int8_product.measure()
    assert set(figures) == set(int8_product.FIGURES) and min(figures.values()) > 0
