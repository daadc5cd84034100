"""Tests `torch.compile` on a device: a compiled function must do what the same function does without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.contracts.hardware import Hardware
from arcforge_core.testing.device_checks import fault_in, property_result
from arcforge_core.testing.hardware_checks import DECLINED, CheckResult

ROWS = (5, 9, 12, 1)
"""Rows of the calls: the second and third make torch compile for any number."""
APART = 1e-5
"""Relative difference in float32 between a compiled function and the plain one."""


def layer(x: Tensor, weight: Tensor) -> Tensor:
    """A normalised layer: products, a reduction, and element-wise work that a compiler fuses."""
    y = F.silu(x @ weight.t()) + 1.0
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)


def counted(x: Tensor, seen: Tensor) -> Tensor:
    """Changes an argument in place, through a view, and reads it again."""
    seen[1:].add_(x.sum(0)[1:])
    return x * seen


def chosen(x: Tensor) -> Tensor:
    """Takes one of two ways by a value, which no compiler knows."""
    if x.sum() > 0:
        return x + 1.0
    return x * 2.0


class Compiled:
    """The three functions, compiled.

    Args:
        backend: of `torch.compile`.
        device: torch device type.
    """

    def __init__(self, backend: str, device: str) -> None:
        torch.compiler.reset()
        self.device = device
        self.layer, self.counted, self.chosen = (torch.compile(f, backend=backend) for f in (layer, counted, chosen))

    def drawn(self, *shape: int) -> Tensor:
        """Returns values on the device, drawn by the caller's generator."""
        return torch.randn(*shape).to(self.device)


def shapes(on: Compiled) -> str:
    """Outputs are right for every number of rows."""
    weight = on.drawn(8, 6)
    for rows in ROWS:
        x = on.drawn(rows, 6)
        if fault := _apart(f"the output of {rows} rows", on.layer(x, weight), layer(x, weight)):
            return fault
    return ""


def gradients(on: Compiled) -> str:
    """Gradients are those of the plain function."""
    weight, x = on.drawn(8, 6), on.drawn(5, 6)
    found = []
    for function in (on.layer, layer):
        leaves = [value.detach().clone().requires_grad_() for value in (x, weight)]
        found.append(torch.autograd.grad((function(*leaves) * torch.arange(8, device=on.device)).sum(), leaves))
    for name, got, wanted in zip(("input", "weight"), *found, strict=True):
        if fault := _apart(f"the gradient of the {name}", got, wanted):
            return fault
    return ""


def updates(on: Compiled) -> str:
    """A weight that changes after compilation has its new value."""
    weight, x = on.drawn(8, 6), on.drawn(5, 6)
    for _ in range(2):
        if fault := _apart("the output after an update", on.layer(x, weight), layer(x, weight)):
            return fault
        with torch.no_grad():
            weight.mul_(-2.0)
    return ""


def in_place(on: Compiled) -> str:
    """Arguments that a function changes in place are changed afterwards, once per call."""
    seen, wanted = torch.zeros(6, device=on.device), torch.zeros(6, device=on.device)
    for _ in range(2):
        x = on.drawn(5, 6)
        out, right = on.counted(x, seen), counted(x, wanted)
        if fault := _apart("an argument changed in place", seen, wanted) or _apart("the output", out, right):
            return fault
    return ""


def branches(on: Compiled) -> str:
    """The way that values choose is chosen in each call."""
    x = on.drawn(5, 6).abs()
    for sign in (1.0, -1.0, 1.0):
        if fault := _apart(
            f"the output for a sum {'above' if sign > 0 else 'below'} 0", on.chosen(sign * x), chosen(sign * x)
        ):
            return fault
    return ""


PROBES: dict[str, Callable[[Compiled], str]] = {
    "shapes": shapes, "gradients": gradients, "updates": updates, "in place": in_place, "branches": branches,
}  # fmt: skip


def check_compile(hardware: Hardware) -> Iterator[CheckResult]:
    """Yields one result for each property, or one that says that no backend of `torch.compile` is named."""
    device, backend = hardware.identity.device, hardware.capabilities.compiler
    if backend is None:
        yield CheckResult("compile", "", "", 0.0, 0.0, DECLINED, "capabilities name no backend of torch.compile")
        return
    for name, probe in PROBES.items():
        yield property_result(f"compile {name}", fault_in(lambda _, p=probe: p(Compiled(backend, device)), device))  # type: ignore[misc]
    torch.compiler.reset()


def _apart(what: str, got: Any, wanted: Tensor) -> str:
    """Returns how a result differs in shape, device or values."""
    if got.shape != wanted.shape or got.device != wanted.device:
        return f"{what} is {tuple(got.shape)} on {got.device}, not {tuple(wanted.shape)} on {wanted.device}"
    here, right = got.detach().cpu().double(), wanted.detach().cpu().double()
    error = float((here - right).abs().max() / right.abs().max())
    return "" if error <= APART else f"{what} differs by {error:.1e} from the plain function's"
