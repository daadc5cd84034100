"""Tests the claims of a backend about its device, both ways: a false yes, and a false no."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import torch

from arcforge_core.contracts.hardware import Hardware
from arcforge_core.testing.hardware_checks import FAIL, PASS, CheckResult

VALUES = (0.0, 1.0, -2.0, 96.0)
"""Exact in every floating dtype, fp8 included."""


def check_device(hardware: Hardware) -> Iterator[CheckResult]:
    """Yields one result for each property of the device; their `kernel` is empty."""
    device, claims = hardware.identity.device, hardware.capabilities
    dtypes: dict[str, tuple[bool, Callable[[str], str]]] = {
        "float64": (claims.float64, _float64),
        "int64": (claims.int64, _int64),
        "bf16": (claims.bf16, lambda d: _copied(torch.tensor(VALUES, dtype=torch.bfloat16), d, 2)),
        "fp8": (claims.fp8, lambda d: _copied(torch.tensor(VALUES).to(torch.float8_e4m3fn), d, 0)),
        "fused_adamw": (claims.fused_adamw, _fused_adamw),
        "pinned_memory": (claims.pinned_memory, _pinned_memory),
    }
    for name, (claimed, probe) in dtypes.items():
        fault = fault_in(probe, device)
        if claimed:
            yield property_result(f"device {name}", fault and f"capabilities say {name}, but {fault}")
        else:
            yield property_result(
                f"device {name}", "" if fault else f"capabilities say no {name}, but the device has it"
            )
    for name, probe in (("copies", _copies), ("rng", _rng), ("save", _saved), ("aliasing", _aliasing)):
        yield property_result(f"device {name}", fault_in(probe, device))


def property_result(op: str, fault: str) -> CheckResult:
    """Returns the result of a check that belongs to no kernel; it fails if there is a fault."""
    return CheckResult(op, "", "", 0.0, 0.0, FAIL if fault else PASS, fault)


def fault_in(probe: Callable[[str], str], device: str) -> str:
    """Returns the fault that a probe of a device finds, or what it raises; empty if there is none."""
    try:
        return probe(device)
    except Exception as error:  # whatever the vendor's runtime raises
        return f"it raises {type(error).__name__}: {str(error).splitlines()[0]}"


def _copied(values: torch.Tensor, device: str, doubled: int) -> str:
    there = values.to(device)
    if there.dtype != values.dtype:
        return f"a copy of {values.dtype} is {there.dtype}"
    wide = values.to(torch.float32) * (doubled or 1)
    back = (there + there if doubled else there).cpu().to(torch.float32)
    return "" if torch.equal(back, wide) else f"{values.tolist()} came back as {back.tolist()}"


def _float64(device: str) -> str:
    values = torch.tensor([1.0, 1.0 + 2.0**-50], dtype=torch.float64)
    total = (values.to(device) - 1.0).cpu()
    return "" if torch.equal(total, values - 1.0) else "its float64 is narrower"


def _int64(device: str) -> str:
    values = torch.tensor([2**40 + 1, -(2**35)])
    there = values.to(device)
    if not torch.equal(there.cpu(), values):
        return f"int64 values are cut by a copy: {there.tolist()}"
    return "" if torch.equal((there + 1).cpu(), values + 1) else "int64 values are cut by an addition"


def _fused_adamw(device: str) -> str:
    ours, theirs = (torch.ones(8, device=d, requires_grad=True) for d in (device, "cpu"))
    for parameter, options in ((ours, {"fused": True}), (theirs, {"foreach": False})):
        parameter.grad = torch.full((8,), 0.5, device=parameter.device)
        torch.optim.AdamW([parameter], lr=0.1, **options).step()  # type: ignore[arg-type]
    return "" if torch.allclose(ours.detach().cpu(), theirs.detach()) else "its fused AdamW gives other weights"


def _pinned_memory(device: str) -> str:
    if device == "cpu":
        return "a host is no chip"
    values = torch.tensor(VALUES)
    host = torch.empty(len(VALUES), pin_memory=True).copy_(values)
    if not host.is_pinned():
        return "memory that was asked for as pinned is not"
    return "" if torch.equal(host.to(device).cpu(), values) else "values in pinned memory came back as others"


def _copies(device: str) -> str:
    """Copies of views, in both directions, with their gaps."""
    grid = torch.arange(24.0).reshape(4, 6)
    there = grid.to(device)
    for view in (lambda x: x.T, lambda x: x[::2, 1::2], lambda x: x[1:1], lambda x: x[3]):
        if not torch.equal(view(there).cpu(), view(grid)) or not torch.equal(view(grid).to(device).cpu(), view(grid)):
            return f"a copy of a view of shape {tuple(view(grid).shape)} has other values"
    return ""


def _aliasing(device: str) -> str:
    base = torch.zeros(4, device=device)
    base[1:3].add_(1.0)
    return "" if base.tolist() == [0.0, 1.0, 1.0, 0.0] else f"a view's change gave {base.tolist()}"


def _rng(device: str) -> str:
    """The generator's state is saved and restored with every checkpoint, between two draws."""
    module = torch if device == "cpu" else torch.get_device_module(device)
    before = module.get_rng_state()

    def drawn() -> dict[str, torch.Tensor]:
        return {
            "normal values": torch.randn(3, device=device).cpu(),  # an odd number: half a pair may be left
            "uniform values": torch.rand(16, device=device).cpu(),
            "dropout": torch.nn.functional.dropout(torch.ones(64, device=device)).cpu(),
        }

    try:
        drawn()
        file = io.BytesIO()
        torch.save(module.get_rng_state(), file)
        first, later = drawn(), drawn()
        file.seek(0)
        module.set_rng_state(torch.load(file, weights_only=True))
        again = drawn()
    finally:
        module.set_rng_state(before)
    for name, values in first.items():
        if torch.equal(values, later[name]):
            return f"two draws of {name} are equal"
        if not torch.equal(values, again[name]):
            return f"{name} drawn after the state was restored are others"
    return ""


def _saved(device: str) -> str:
    weights = torch.randn(64, dtype=torch.float32)
    file = io.BytesIO()
    torch.save({"w": weights.to(device).cpu()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["w"].to(device).cpu()
    return "" if torch.equal(loaded, weights) else "weights that were saved and loaded have other bits"
