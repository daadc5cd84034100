"""Experts in bf16 are multiplied in the dtype that was measured to be faster, with results of the same accuracy."""

from collections.abc import Iterator

import pytest
import torch

from arcforge_core.ops import reference
from arcforge_hw.cpu.backend import Cpu
from arcforge_hw.torch_ops import expert_rows
from arcforge_hw.torch_ops import moe_experts as module
from arcforge_hw.torch_ops.expert_rows import ALWAYS, measure, most_rows


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[None]:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("ARCFORGE_CALIBRATION", raising=False)
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    expert_rows._measured.cache_clear()
    yield
    expert_rows._measured.cache_clear()


def inputs(rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(rows)
    tokens = 2 * rows  # two of four experts each
    shapes = (tokens, 16), (4, 32, 16), (4, 16, 16)
    x, gate_up, down = (torch.randn(*shape, generator=draw).to(dtype) for shape in shapes)
    expert_TK = torch.arange(2 * tokens).remainder(4).view(tokens, 2)
    return x, gate_up, down, expert_TK, torch.rand(tokens, 2, generator=draw)


def dtypes_used(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    used: list[torch.dtype] = []
    products = module.grouped_mm
    monkeypatch.setattr(module, "grouped_mm", lambda a, b, ends: used.append(a.dtype) or products(a, b, ends))
    return used


@pytest.mark.parametrize(("limit", "rows", "dtype"), [
    (0, 4, torch.bfloat16), (4, 4, torch.float32), (4, 5, torch.bfloat16), (ALWAYS, 64, torch.float32),
])  # fmt: skip
def test_the_variable_chooses_the_dtype_by_rows(
    limit: float, rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCFORGE_CALIBRATION", f"fp32_expert_rows={limit:g}")
    used, given = dtypes_used(monkeypatch), inputs(rows)
    out_TD = module.moe_experts(*given)
    assert set(used) == {dtype} and out_TD.dtype == torch.bfloat16
    wanted_TD = reference.moe_experts(*(x.double() if x.is_floating_point() else x for x in given))
    torch.testing.assert_close(out_TD.double(), wanted_TD, rtol=0.05, atol=0.05 * float(wanted_TD.abs().max()))


def test_other_dtypes_gradients_and_large_weights_are_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCFORGE_CALIBRATION", f"fp32_expert_rows={ALWAYS:g}")
    used = dtypes_used(monkeypatch)
    x, *rest = inputs(4)
    module.moe_experts(x.requires_grad_(), *rest)
    assert set(used) == {torch.bfloat16}
    with torch.no_grad():
        module.moe_experts(x, *rest)
        assert torch.float32 in used
        used.clear()
        monkeypatch.setattr(expert_rows, "LARGEST", 100)
        module.moe_experts(x, *rest)
    assert set(used) == {torch.bfloat16}


@pytest.mark.parametrize(("faster_until", "most"), [(0, 0.0), (16, 16.0), (128, 128.0), (10_000, ALWAYS)])
def test_the_limit_is_where_fp32_is_first_slower(
    faster_until: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = iter(expert_rows.ROWS)

    def timed(calls: dict[str, object], seconds: float, least: int) -> dict[str, float]:
        now = next(rows)
        gain = 4.0 if faster_until == 10_000 else 1.5
        return {"bf16": 1.0, "fp32": 1 / gain if now <= faster_until else 1.5}

    monkeypatch.setattr(expert_rows, "fastest", timed)
    assert measure(module.grouped_experts) == most


def test_it_is_measured_once_shown_by_the_doctor_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    assert expert_rows.SECONDS * len(expert_rows.ROWS) < 3.0
    measured = iter([8.0])
    monkeypatch.setattr(expert_rows, "measure", lambda function: next(measured))
    assert most_rows(module.grouped_experts) == 8.0
    expert_rows._measured.cache_clear()  # as another process
    assert Cpu.choices(None)[0] == "experts in bf16 are multiplied in fp32 up to 8 rows of an expert (measured)"  # type: ignore[arg-type]
    for value, words in (("0", "never"), (f"{ALWAYS:g}", "always")):
        monkeypatch.setenv("ARCFORGE_CALIBRATION", f"fp32_expert_rows={value}")
        wanted = f"experts in bf16 are multiplied in fp32 {words} (ARCFORGE_CALIBRATION)"
        assert Cpu.choices(None)[0] == wanted  # type: ignore[arg-type]
