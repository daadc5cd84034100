"""Tests torch's autocast on a device: which operators become narrow, which stay wide, and what survives its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.contracts.hardware import Hardware
from arcforge_core.testing.device_checks import fault_in, property_result
from arcforge_core.testing.hardware_checks import CheckResult

NARROW = torch.bfloat16
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": lambda x, w: x @ w.t(),
    "linear": F.linear,
    "bmm": lambda x, w: torch.bmm(x[None], w.t()[None])[0],
}
APART = 2e-2
"""Error allowed to a product in bfloat16, relative to its largest value."""


def products(device: str) -> str:
    """Products are in bfloat16, and near those of float64."""
    for name, product in PRODUCTS.items():
        x, w = _drawn(device)
        with torch.autocast(device, NARROW):
            out = product(x, w)
        if out.dtype != NARROW:
            return f"{name} is {out.dtype} instead of {NARROW}"
        if fault := _apart(name, out, product(x.cpu().double(), w.cpu().double())):
            return fault
    return ""


def losses(device: str) -> str:
    """A loss of bfloat16 values is computed and returned in float32."""
    x, w = _drawn(device)
    with torch.autocast(device, NARROW):
        out = F.linear(x, w)
        loss = F.mse_loss(out, torch.zeros_like(out))
    if loss.dtype != torch.float32:
        return f"a loss is {loss.dtype} instead of torch.float32"
    wanted = out.cpu().double().square().mean()
    return "" if abs(float(loss) - float(wanted)) <= 1e-5 * float(wanted) else "a loss in float32 has bfloat16's errors"


def ends(device: str) -> str:
    """Outside, and where it is disabled inside, products are in float32."""
    x, w = _drawn(device)
    with torch.autocast(device, NARROW):
        with torch.autocast(device, enabled=False):
            inner = F.linear(x, w)
        again = F.linear(x, w)
    outside = F.linear(x, w)
    if again.dtype != NARROW:
        return "autocast does not resume after a part in which it is disabled"
    for name, out in (("where it is disabled", inner), ("after its end", outside)):
        if out.dtype != torch.float32:
            return f"a product {name} is {out.dtype}"
    return ""


def gradients(device: str) -> str:
    """Gradients of float32 weights are float32, and near those of float64."""
    x, w = _drawn(device)
    weight = w.requires_grad_()
    with torch.autocast(device, NARROW):
        loss = F.linear(x, weight).square().float().mean()
    loss.backward()
    exact = w.detach().cpu().double().requires_grad_()
    F.linear(x.cpu().double(), exact).square().mean().backward()
    assert exact.grad is not None
    if weight.grad is None or weight.grad.dtype != torch.float32:
        return "the gradient of a float32 weight is missing or not float32"
    return _apart("a gradient", weight.grad, exact.grad)


def updates(device: str) -> str:
    """A weight that is changed between two uses is cast again."""
    x, w = _drawn(device)
    w.requires_grad_()
    for factor in (1.0, 3.0):
        with torch.autocast(device, NARROW):
            out = F.linear(x, w)
        if fault := _apart("a product after an update", out, factor * F.linear(x.cpu(), w.detach().cpu() / factor)):
            return fault
        with torch.no_grad():
            w.mul_(3.0)
    return ""


PROBES = {"products": products, "losses": losses, "ends": ends, "gradients": gradients, "updates": updates}


def check_autocast(hardware: Hardware) -> Iterator[CheckResult]:
    """Yields one result for each property; only one, a false no, where autocast is not claimed."""
    device = hardware.identity.device
    if not hardware.capabilities.autocast:
        works = not any(fault_in(probe, device) for probe in PROBES.values())
        yield property_result("autocast", "capabilities say no autocast, but the device has it" if works else "")
        return
    for name, probe in PROBES.items():
        yield property_result(f"autocast {name}", fault_in(probe, device))


def _drawn(device: str) -> tuple[Tensor, Tensor]:
    """Returns rows [5, 64] and a weight [7, 64], drawn by the caller's generator."""
    return torch.randn(5, 64).to(device), torch.randn(7, 64).to(device)


def _apart(what: str, got: Tensor, wanted: Tensor) -> str:
    error = float((got.detach().cpu().double() - wanted).abs().max() / wanted.abs().max())
    return "" if error <= APART else f"{what} has an error of {error:.1e}"
