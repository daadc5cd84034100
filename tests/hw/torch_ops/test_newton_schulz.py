"""Newton-Schulz on Gram matrices: the plain form's result, singular values where they belong, operations counted."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from arcforge_core.contracts.hardware import OpCall
from arcforge_core.ops import reference
from arcforge_core.ops.dispatch import Ops
from arcforge_hw.configs import CpuConfig
from arcforge_hw.cpu.backend import Cpu
from arcforge_hw.torch_ops.newton_schulz import flops, newton_schulz, reference_flops
from arcforge_optim.configs import COEFFICIENTS


def matrices(batch, rows, columns, dtype=torch.float64, seed=0):
    return torch.randn(batch, rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 40), st.sampled_from(sorted(COEFFICIENTS)))
def test_equals_the_plain_form(batch, rows, columns, name):
    x_BMN = matrices(batch, rows, columns)
    wanted = reference.newton_schulz(x_BMN, COEFFICIENTS[name])
    torch.testing.assert_close(newton_schulz(x_BMN, COEFFICIENTS[name]), wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("steps", range(5))
def test_any_number_of_steps(steps):
    x_BMN = matrices(2, 6, 20)
    wanted = reference.newton_schulz(x_BMN, COEFFICIENTS["kj"][:steps])
    torch.testing.assert_close(newton_schulz(x_BMN, COEFFICIENTS["kj"][:steps]), wanted)


@pytest.mark.parametrize("least", [1e-1, 1e-3, 1e-6, 0.0])
def test_singular_values_of_float32_stay_where_the_plain_form_leaves_them(least):
    """Small ones are below the digits of a Gram matrix: they must neither explode nor turn negative."""
    u, v = (torch.linalg.qr(matrices(1, n, n, seed=n)[0])[0] for n in (16, 48))
    values = torch.logspace(0, -3, 16, dtype=torch.float64)
    values[-1] = least
    x_BMN = (u * values @ v[:, :16].mT)[None]
    exact = reference.newton_schulz(x_BMN, COEFFICIENTS["kj"])
    got = newton_schulz(x_BMN.float(), COEFFICIENTS["kj"])
    assert torch.linalg.svdvals(got).max() < 1.3
    assert (got.double() - exact).abs().max() < 0.02 if least >= 1e-3 else got.isfinite().all()
    kept = 15 if least < 1e-3 else 16
    large = u[:, :kept].mT @ got[0].double() @ v[:, :kept]
    wanted = u[:, :kept].mT @ exact[0] @ v[:, :kept]
    torch.testing.assert_close(large, wanted, rtol=1e-3, atol=1e-3)


def test_zero_and_tiny_matrices():
    zero, tiny = torch.zeros(1, 4, 12), 1e-6 * matrices(1, 4, 12, torch.float32)
    assert torch.equal(newton_schulz(zero, COEFFICIENTS["kj"]), zero)
    wanted = reference.newton_schulz(tiny, COEFFICIENTS["kj"])
    torch.testing.assert_close(newton_schulz(tiny, COEFFICIENTS["kj"]), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("form", "counted"), [(newton_schulz, flops), (reference.newton_schulz, reference_flops)])
@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (10, 10)])
def test_operations_are_what_is_counted(form, counted, shape):
    with FlopCounterMode(display=False) as counter:
        form(matrices(1, *shape), COEFFICIENTS["kj"])
    assert counter.get_total_flops() == counted(*shape)


@pytest.mark.parametrize(
    ("shape", "dtype", "chosen"),
    [
        ((64, 256), torch.float32, "cpu.newton_schulz.gram"),
        ((256, 64), torch.float32, "cpu.newton_schulz.gram"),
        ((64, 64), torch.float32, "reference"),
        ((64, 256), torch.bfloat16, "reference"),
    ],
)
def test_the_form_is_chosen_by_shape(shape, dtype, chosen):
    ops = Ops(Cpu(CpuConfig()))
    sizes = dict(zip(("rows", "columns"), shape, strict=True))
    ops.bind(OpCall("newton_schulz", "cpu", dtype, needs_grad=False, sizes=sizes))
    [choice] = ops.choices.values()
    assert choice.kernel == chosen
    assert chosen != "reference" or choice.rejected[-1][1]
