import pytest
import torch

from arcforge_core.ops import Ops
from arcforge_optim import newton_schulz
from arcforge_optim.configs import COEFFICIENTS
from arcforge_optim.newton_schulz import bind_newton_schulz, iteration_dtype, normalize_exponent

CPU = torch.device("cpu")


def bind(shape: tuple[int, int], steps: str = "quintic", dtype: torch.dtype = torch.float32):
    return bind_newton_schulz(Ops(), shape, dtype, CPU, COEFFICIENTS[steps])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1.0, 1e-20, 1e-36, 1e20])
def test_normalized_exponent_is_exact(dtype, size):
    x_BMN = (torch.randn(4, 5, 6) * size).to(dtype)
    scaled_BMN = normalize_exponent(x_BMN.clone())
    peaks = scaled_BMN.abs().amax(dim=(1, 2))
    assert ((peaks >= 0.5) & (peaks < 1.0)).all()
    factors = scaled_BMN.double() / x_BMN.double()
    assert torch.equal(factors, factors[:, :1, :1].expand_as(factors))
    assert (factors.log2() == factors.log2().round()).all()


def test_size_of_the_gradient_does_not_matter():
    x_BMN = torch.randn(2, 8, 16)
    orthogonalize = bind((8, 16))
    expected = orthogonalize(x_BMN.clone())
    for exponent in (-100, -70, 90):
        assert torch.equal(orthogonalize(x_BMN * 2.0**exponent), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", list(COEFFICIENTS))
def test_zero_and_rank_one_matrices(steps, dtype):
    torch.manual_seed(0)
    rank_one = torch.outer(torch.randn(6), torch.randn(9))
    result_BMN = bind((6, 9), steps, dtype)(torch.stack([torch.zeros(6, 9), rank_one]).to(dtype)).float()
    assert torch.equal(result_BMN[0], torch.zeros(6, 9))
    values = torch.linalg.svdvals(result_BMN[1])
    assert 0.6 < values[0] < 1.25
    # what bfloat16 rounds away is no longer of rank one, and is brought towards 1 as well
    assert values[1:].max() < (1e-2 if dtype == torch.float32 else 1.25)


@pytest.mark.parametrize(("steps", "low", "high"), [("kj", 0.67, 1.14), ("quintic", 0.97, 1.04)])
@pytest.mark.parametrize("shape", [(16, 16), (12, 40), (40, 12)])
def test_singular_values_end_near_one(steps, low, high, shape):
    torch.manual_seed(0)
    u, _, vh = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    x_MN = (u * torch.linspace(0.1, 1.0, min(shape))) @ vh
    values = torch.linalg.svdvals(bind(shape, steps)(x_MN[None].clone())[0])
    assert low < values.min() and values.max() < high


@pytest.mark.parametrize(("instructions", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_follows_the_processor(monkeypatch, instructions, expected):
    monkeypatch.setattr(newton_schulz, "fast_bf16", lambda device: instructions or device != "cpu")
    assert iteration_dtype("auto", CPU) == expected
    assert iteration_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert iteration_dtype("auto", CPU, deterministic=True) == torch.float32, "it depends on no measurement"
    assert iteration_dtype("bf16", CPU, deterministic=True) == torch.bfloat16
    assert iteration_dtype("auto", torch.device("cuda"), deterministic=True) == torch.bfloat16, "claimed, not measured"
    assert iteration_dtype("bf16", CPU) == torch.bfloat16
    assert iteration_dtype("fp32", torch.device("cuda")) == torch.float32
