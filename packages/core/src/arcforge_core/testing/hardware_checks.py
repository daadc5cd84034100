"""Compares each kernel of a hardware backend with the float64 reference, forward and backward.

`HardwareBackendSuite` and ``arcforge-conformance`` both run these checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import Hardware, Kernel, OpCall, Verdict
from arcforge_core.ops import reference
from arcforge_core.testing.op_case import OpCase
from arcforge_core.testing.op_inputs import op_cases

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class CheckResult:
    """The result of one kernel on all cases of its op in one dtype.

    Attributes:
        op: op name.
        kernel: kernel name.
        dtype: e.g. ``float32``.
        error: largest relative error over outputs and gradients.
        tolerance: the kernel's declared tolerance.
        verdict: ``ok``, ``FAILED`` or ``declined``.
        reason: the first failure, or the reason why the kernel declined.
    """

    op: str
    kernel: str
    dtype: str
    error: float
    tolerance: float
    verdict: str
    reason: str = ""


class KernelFault(AssertionError):
    """A kernel broke a rule other than the error bound."""


def check_hardware(hardware: Hardware, ops: Sequence[str] | None = None) -> Iterator[CheckResult]:
    """Yields one result per kernel and dtype of a usable backend; `ops` limits them."""
    for kernel in hardware.kernels():
        if ops is None or kernel.op in ops:
            for dtype in DTYPES:
                yield check_kernel(kernel, hardware.device_type, dtype)


def check_kernel(kernel: Kernel, device: str, dtype: torch.dtype) -> CheckResult:
    """Runs every case of the kernel's op, with and without gradients, on dense and on strided inputs."""
    name = str(dtype).removeprefix("torch.")
    tolerance = kernel.tolerance.get(dtype)
    worst, declined, ran = 0.0, "", False

    def result(verdict: str, reason: str) -> CheckResult:
        return CheckResult(kernel.op, kernel.name, name, worst, tolerance or 0.0, verdict, reason)

    if kernel.op not in reference.OPS:
        return result("FAILED", f"unknown op, must be one of {', '.join(sorted(reference.OPS))}")
    for case in op_cases(kernel.op):
        for with_grad in (False, True) if case.grad else (False,):
            try:
                verdict = supports(kernel, OpCall(kernel.op, device, dtype, with_grad, case.sizes))
                if not verdict.ok:
                    declined = declined or verdict.reason
                    continue
                if tolerance is None:
                    return result("FAILED", f"supports {name} but declares no tolerance for it")
                for strided in (False, True):
                    ran = True
                    worst = max(worst, relative_error(kernel.fn, case, device, dtype, with_grad, strided))
            except Exception as error:  # a plugin author wants the op and the case, not only a traceback
                return result("FAILED", f"{case.name}: {type(error).__name__}: {error}")
            if not worst <= tolerance:  # `not <=` also catches NaN
                part = "forward and gradients" if with_grad else "forward"
                return result("FAILED", f"{case.name} ({part}): error {worst:.1e} over tolerance {tolerance:.0e}")
    return result("ok" if ran else "declined", "" if ran else declined)


def supports(kernel: Kernel, call: OpCall) -> Verdict:
    """Returns the kernel's verdict.

    Raises:
        KernelFault: the verdict is not a `Verdict`, is negative without a reason, or changes on a second call.
    """
    verdict = kernel.supports(call)
    if not isinstance(verdict, Verdict):
        raise KernelFault(f"supports() returned {verdict!r}, not a Verdict")
    if not verdict.ok and not verdict.reason:
        raise KernelFault(f"supports() rejects {call} without a reason")
    if kernel.supports(call) != verdict:
        raise KernelFault(f"supports() returns different verdicts for {call}")
    return verdict


def relative_error(
    fn: Callable[..., Any], case: OpCase, device: str, dtype: torch.dtype, with_grad: bool, strided: bool
) -> float:
    """Returns the largest error over output and gradients, each relative to its largest reference value.

    The reference gets the same values, rounded to `dtype` first, and computes in float64.

    Raises:
        KernelFault: wrong shape, dtype or device, a modified input, or two runs that differ.
    """
    given = case.inputs(dtype, device, strided=strided)
    exact = {k: v.double() if _is_float(v) else v for k, v in case.inputs(dtype, device).items()}
    wanted = _run(reference.OPS[case.op], exact, case.grad if with_grad else ())
    first = _run(fn, given, case.grad if with_grad else ())
    for name, value in case.inputs(dtype, device).items():
        if isinstance(value, Tensor) and not torch.allclose(given[name], value, rtol=0, atol=0, equal_nan=True):
            raise KernelFault(f"the kernel changed its input {name}")
    again = _run(fn, given, case.grad if with_grad else ())
    worst = 0.0
    for label, want in wanted.items():
        got = first[label]
        expected = like_output(case, dtype, label) if label.startswith("output") else given[label].dtype
        if got.shape != want.shape or got.dtype != expected or got.device.type != device:
            raise KernelFault(
                f"{label} is {tuple(got.shape)} {got.dtype} on {got.device.type}, "
                f"not {tuple(want.shape)} {expected} on {device}"
            )
        if not torch.equal(got, again[label]):
            raise KernelFault(f"{label} differs between two runs on the same inputs")
        worst = max(worst, _relative(got, want))
    return worst


def like_output(case: OpCase, dtype: torch.dtype, label: str) -> torch.dtype:
    """Returns the dtype of an op's output: that of the activations, except for indices, records, losses and states."""
    if (case.op, label) == ("gated_delta_rule", "output 2"):
        return torch.promote_types(dtype, torch.float32)
    if (case.op, label) in (("indexer_topk", "output"), ("argmax_logprob", "output"), ("sample", "output")):
        return torch.int64
    if case.op == "argmax_logprob":
        return torch.promote_types(dtype, torch.float32)
    if case.op == "to_records":
        return torch.int8
    if case.op in ("linear_cross_entropy", "indexer_kl") and dtype.itemsize < 4:
        return torch.float32
    return dtype


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _run(fn: Callable[..., Any], args: Mapping[str, Any], grad: Sequence[str]) -> dict[str, Tensor]:
    """Returns the outputs and, for fixed random cotangents, the gradients of the named arguments.

    An op's only or first output is ``output``, others are ``output 2``, ...
    """
    leaves = {name: args[name].detach().requires_grad_() for name in grad}
    with torch.set_grad_enabled(bool(grad)):
        output: Tensor | tuple[Tensor, ...] = fn(*{**args, **leaves}.values())
    outputs = output if isinstance(output, tuple) else (output,)
    results = {f"output {n}" if n > 1 else "output": value.detach() for n, value in enumerate(outputs, 1)}
    if grad:
        generator = torch.Generator().manual_seed(1)
        cotangents = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in outputs]
        gradients = torch.autograd.grad(outputs, list(leaves.values()), cotangents)
        results |= dict(zip(leaves, gradients, strict=True))
    return results


def _relative(got: Tensor, want: Tensor) -> float:
    if not want.is_floating_point():
        return float((got != want).double().mean())
    scale = float(want.abs().max())
    error = float((got.double() - want).abs().max())
    return error / scale if scale > 0 else error
