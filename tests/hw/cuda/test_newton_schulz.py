"""Newton-Schulz with mirrored tiles: the plain form's result, whatever lies where; when it is the better form."""

import pytest
import torch

import arcforge_hw.cuda.newton_schulz as kernel
from arcforge_core.contracts.hardware import OpCall
from arcforge_core.testing.hardware_checks import relative_error
from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.configs import CudaConfig
from arcforge_hw.cuda.backend import Cuda, triton_kernels

STEPS = [(3.4445, -4.7750, 2.0315)] * 5


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(kernel, "tuned", lambda _: {"BLOCK_M": 16, "BLOCK_N": 16})


@pytest.mark.parametrize("case", op_cases("newton_schulz"), ids=lambda case: case.name)
def test_equals_the_reference(case, device, small_tiles):
    error = relative_error(kernel.newton_schulz, case, device, torch.float32, with_grad=False, strided=True)
    assert error < 2e-5


@pytest.mark.parametrize("shape", [(2, 40, 50), (1, 16, 70), (3, 33, 3), (0, 20, 20)])
@pytest.mark.parametrize("turned", [False, True])
def test_products_are_symmetric_and_whole(shape, turned, device, small_tiles):
    """Tiles below, on and above the diagonal, rows and columns left over, transposed memory."""
    draw = torch.Generator().manual_seed(0)
    x_BMN = torch.randn(shape, generator=draw).to(device)
    x_BMN = x_BMN.mT.contiguous().mT if turned else x_BMN
    gram = x_BMN @ x_BMN.mT
    got = kernel.symmetric(x_BMN)
    torch.testing.assert_close(got, gram, rtol=1e-5, atol=1e-4)
    got = kernel.symmetric(x_BMN, 0.5, gram, -2.0)
    torch.testing.assert_close(got, -1.5 * gram, rtol=1e-5, atol=1e-4)


def test_tiles_above_the_diagonal_are_images(device, small_tiles):
    got = kernel.symmetric(torch.randn(1, 48, 30, generator=torch.Generator().manual_seed(0)).to(device))[0]
    above = torch.ones(3, 3).triu(1).repeat_interleave(16, 0).repeat_interleave(16, 1).bool()
    assert torch.equal(got[above], got.T[above])


def test_matrices_of_many_tiles(device, small_tiles):
    x_BMN = torch.randn(2, 50, 33, generator=torch.Generator().manual_seed(0)).to(device)
    got = kernel.newton_schulz(x_BMN, STEPS)
    values = torch.linalg.svdvals(got)
    assert got.shape == x_BMN.shape
    assert values.min() > 0.6 and values.max() < 1.3


def chosen(shape, dtype):
    call = OpCall("newton_schulz", "cuda", dtype, False, {"rows": shape[0], "columns": shape[1]})
    kernels = sorted((k for k in Cuda(CudaConfig()).kernels() if k.op == "newton_schulz"), key=lambda k: -k.priority)
    return next((k.name for k in kernels if k.supports(call).ok), "reference")


@pytest.mark.parametrize(
    ("shape", "dtype", "name"),
    [
        ((2048, 6144), torch.bfloat16, "cuda.newton_schulz.triton"),
        ((256, 2048), torch.bfloat16, "cuda.newton_schulz.triton"),
        ((128, 2048), torch.bfloat16, "reference"),
        ((256, 2048), torch.float32, "cuda.newton_schulz.gram"),
        ((1024, 512), torch.float32, "cuda.newton_schulz.triton"),
        ((64, 512), torch.float32, "cuda.newton_schulz.gram"),
        ((512, 512), torch.float64, "reference"),
    ],
)
def test_the_form_is_chosen_by_operations(shape, dtype, name, monkeypatch):
    monkeypatch.setattr("arcforge_hw.cuda.backend.interpreted", lambda: False)
    assert chosen(shape, dtype) == name


def test_reasons():
    [mirrored] = [k for k in triton_kernels() if k.op == "newton_schulz"]
    call = OpCall("newton_schulz", "cuda", torch.float32, False, {"rows": 100, "columns": 900})
    assert "a Gram matrix of 100 rows is a single tile" in mirrored.supports(call).reason
    call = OpCall("newton_schulz", "cuda", torch.float32, False, {"rows": 2000, "columns": 200})
    assert "the Gram form has fewer operations for 2000 x 200" in mirrored.supports(call).reason


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_equals_the_reference_on_a_gpu(dtype, tolerance):
    for case in op_cases("newton_schulz"):
        assert relative_error(kernel.newton_schulz, case, "cuda", dtype, with_grad=False, strided=True) < tolerance
