"""Matrices in bf16 are multiplied in the dtype that was measured to be faster, with results of the same accuracy."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from arcforge_core.model.norm import Linear
from arcforge_core.ops import reference
from arcforge_core.ops.binding import bind_ops
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.ops.quant import INT8, dequantise, quantise
from arcforge_hw.cpu.backend import Cpu
from arcforge_hw.cpu.native.quant_linear import quant_linear as native_linear
from arcforge_hw.torch_ops import bf16_product as module
from arcforge_hw.torch_ops import linear_cross_entropy as head
from arcforge_hw.torch_ops.bf16_product import NEVER, ROWS, least_rows, linear, measure
from arcforge_hw.torch_ops.quant_linear import quant_linear


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[None]:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("ARCFORGE_CALIBRATION", raising=False)
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    module._measured.cache_clear()
    yield
    module._measured.cache_clear()


def force(monkeypatch: pytest.MonkeyPatch, rows: float) -> None:
    monkeypatch.setenv("ARCFORGE_CALIBRATION", f"fp32_rows={rows:g}")


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def dtypes_used(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    used: list[torch.dtype] = []
    product = module.F.linear
    monkeypatch.setattr(module.F, "linear", lambda x, *rest: used.append(x.dtype) or product(x, *rest))
    return used


@pytest.mark.parametrize(("least", "rows", "dtype"), [
    (0, 4, torch.float32), (4, 4, torch.float32), (5, 4, torch.bfloat16), (NEVER, 64, torch.bfloat16),
])  # fmt: skip
def test_the_variable_chooses_the_dtype_by_rows(
    least: float, rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, least)
    used, x, weight = dtypes_used(monkeypatch), normal(2, rows // 2, 48), normal(16, 48, seed=1)
    out = linear(x, weight)
    assert used == [dtype] and out.dtype == torch.bfloat16 and out.shape == (2, rows // 2, 16)
    torch.testing.assert_close(out.double(), reference.linear(x.double(), weight.double()), rtol=0.02, atol=0.05)


@pytest.mark.parametrize("biased", [False, True])
def test_gradients_equal_the_reference(monkeypatch: pytest.MonkeyPatch, biased: bool) -> None:
    force(monkeypatch, 0)
    given = [normal(3, 5, 48), normal(16, 48, seed=1), *([normal(16, seed=2)] if biased else [])]
    grad = normal(3, 5, 16, seed=3)
    found = []
    for function, dtype in ((linear, torch.bfloat16), (reference.linear, torch.float64)):
        args = [x.to(dtype).requires_grad_() for x in given]
        out = function(*args)
        assert out.dtype == dtype
        found.append(torch.autograd.grad(out, args, grad.to(dtype)))
    for got, wanted in zip(*found, strict=True):
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.double(), wanted, rtol=0.02, atol=0.02 * float(wanted.abs().max()))


@pytest.mark.parametrize("wanting", range(3))
def test_frozen_inputs_get_no_gradient(monkeypatch: pytest.MonkeyPatch, wanting: int) -> None:
    force(monkeypatch, 0)
    given = [normal(5, 48), normal(16, 48, seed=1), normal(16, seed=2)]
    given[wanting].requires_grad_()
    linear(*given).float().sum().backward()
    assert [x.grad is not None for x in given] == [n == wanting for n in range(3)]


def test_other_dtypes_and_large_weights_are_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, 0)
    used = dtypes_used(monkeypatch)
    for dtype in (torch.float32, torch.float64):
        linear(normal(4, 48, dtype=dtype), normal(16, 48, dtype=dtype))
    monkeypatch.setattr(module, "LARGEST", 100)
    linear(normal(4, 48), normal(16, 48))
    assert used == [torch.float32, torch.float64, torch.bfloat16]


def test_tensors_without_memory_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure", None)
    with FakeTensorMode():
        assert linear(torch.empty(200, 48).bfloat16(), torch.empty(16, 48).bfloat16()).shape == (200, 16)


def test_sizes_that_do_not_match_are_torchs_error(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, 0)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        linear(normal(4, 40), normal(16, 48))


def test_linear_layers_and_the_head_of_a_model_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    answer = lambda x, weight, rows: asked.append(rows) or False  # noqa: E731
    monkeypatch.setattr(module, "wants_fp32", answer)
    monkeypatch.setattr(head, "wants_fp32", answer)
    layer = Linear(64, 32)
    bind_ops(layer, Ops(select_hardware("cpu")).binder(torch.bfloat16, torch.device("cpu")))
    layer(normal(100, 64))
    weight = nn.Parameter(normal(32, 64))
    head.linear_cross_entropy(normal(70, 64), weight, torch.zeros(70, dtype=torch.int64), torch.ones(70))
    assert asked == [100, 70]


@pytest.mark.parametrize(("least", "dtype"), [(40, torch.float32), (41, torch.bfloat16)])
@pytest.mark.parametrize("function", [native_linear, quant_linear], ids=["native", "torch"])
def test_quantised_weights_are_widened_to_the_faster_dtype(
    function: Callable[..., torch.Tensor], least: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, least)
    used, product = dtypes_used(monkeypatch), torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, **rest: used.append(a.dtype) or product(a, b, **rest))
    x, weight = normal(2, 20, 64), quantise(normal(48, 64, dtype=torch.float32, seed=1), INT8)
    out = function(x, *weight, None, False)
    assert used == [dtype] and out.dtype == torch.bfloat16
    wanted = reference.linear(x.double(), dequantise(weight, torch.float64))
    torch.testing.assert_close(out.double(), wanted, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("masters", [torch.float32, torch.bfloat16])
def test_a_head_in_fp32_has_the_loss_and_the_gradients(monkeypatch: pytest.MonkeyPatch, masters: torch.dtype) -> None:
    used: list[torch.dtype] = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, **rest: used.append(a.dtype) or product(a, b, **rest))
    target_T, weight_T = torch.arange(70) % 32, torch.rand(70, generator=torch.Generator().manual_seed(2))
    losses, grads = [], []
    for rows in (0, NEVER):
        force(monkeypatch, rows)
        x, weight = normal(70, 64).requires_grad_(), normal(32, 64, dtype=masters, seed=1).requires_grad_()
        loss = head.linear_cross_entropy(x, weight.bfloat16(), target_T, weight_T)
        losses.append(loss.detach())
        grads.append(torch.autograd.grad(loss, (x, weight)))
        assert grads[-1][0].dtype == torch.bfloat16 and grads[-1][1].dtype == masters
    assert set(used) == {torch.float32, torch.bfloat16}
    torch.testing.assert_close(losses[0], losses[1], rtol=5e-3, atol=0)
    for got, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(got.float(), wanted.float(), rtol=0.05, atol=0.02 * float(wanted.abs().max()))


@pytest.mark.parametrize(("faster_from", "least"), [(9, 32.0), (128, 128.0), (2048, 2048.0), (4096, NEVER)])
def test_the_limit_is_where_fp32_is_first_faster(
    faster_from: int, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = iter(ROWS)

    def timed(calls: dict[str, object], seconds: float, times: int) -> dict[str, float]:
        return {"bf16": 1.0, "fp32": 0.5 if next(rows) >= faster_from else 0.95}  # too little to convert for

    monkeypatch.setattr(module, "fastest", timed)
    assert measure() == least


def test_it_is_measured_once_shown_by_the_doctor_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.SECONDS * len(ROWS) < 3.0
    measured = iter([512.0])
    monkeypatch.setattr(module, "measure", lambda: next(measured))
    assert least_rows() == 512.0
    module._measured.cache_clear()  # as another process
    assert "matrices in bf16 are multiplied in fp32 from 512 rows on (measured)" in Cpu.choices(None)  # type: ignore[arg-type]
    force(monkeypatch, NEVER)
    assert "matrices in bf16 are multiplied in fp32 never (ARCFORGE_CALIBRATION)" in Cpu.choices(None)  # type: ignore[arg-type]
