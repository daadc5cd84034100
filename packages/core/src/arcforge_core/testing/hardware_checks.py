"""Compares each kernel of a hardware backend with the float64 reference on the host, forward and backward.

`HardwareBackendSuite` and ``arcforge-conformance`` both run these checks. Nothing that is judged is computed on the
device that is tested, and the op's specification, not the kernel's author, sets the tolerance.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import Hardware, Kernel, OpCall, PreparesWeights, Verdict, Weight
from arcforge_core.contracts.op_names import OP_NAMES
from arcforge_core.ops.dispatch import fault_of
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.large_inputs import large_case
from arcforge_core.testing.model_sizes import model_cases
from arcforge_core.testing.op_case import OpCase
from arcforge_core.testing.op_inputs import op_cases

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
PASS, DECLINED, FAIL = "pass", "declined", "fail"
CALLS = 64
"""Calls of one case, all of which must give the same bits."""
REDRAWN = (1_000, 2_000)
"""Added to the seed of further draws of an op that jumps: one of all draws must be right, and a fault is in each."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one kernel on all cases of its op in one dtype.

    Attributes:
        op: op name.
        kernel: kernel name.
        dtype: e.g. ``float32``.
        error: largest relative error over outputs and gradients.
        tolerance: the error allowed.
        verdict: ``pass``, ``declined`` or ``fail``.
        reason: the first failure; the reason why the kernel declined, or why it may have a larger error.
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


STALE = 0.1
"""Relative error from which an output equal to an earlier one is taken for that."""
AS_REFERENCE = 2.0
"""Multiple of the reference's own error that a kernel may have: in rare draws, whose results are small next to the
terms that they are sums of, the reference exceeds the tolerance too. Not beside a promise of less."""


def check_hardware(
    hardware: Hardware, ops: Sequence[str] | None = None, seed: int = 0, draws: int = 1
) -> Iterator[CheckResult]:
    """Yields one result per kernel and dtype of a usable backend.

    Args:
        hardware: the backend.
        ops: only these.
        seed: of all values.
        draws: how often each case is drawn.
    """
    for kernel in hardware.kernels():
        if ops is None or kernel.op in ops:
            for dtype in DTYPES:
                yield check_kernel(
                    kernel, hardware.identity.device, dtype, seed, draws, hardware.capabilities.tokens, hardware
                )


def check_kernel(
    kernel: Kernel,
    device: str,
    dtype: torch.dtype,
    seed: int = 0,
    draws: int = 1,
    tokens: int | None = None,
    backend: object = None,
) -> CheckResult:
    """Runs every case of the kernel's op, with and without gradients, dense and strided, small and large.

    Cases beyond the kernel's limits, or with more rows than `tokens`, are not run: the dispatcher never makes them. A
    kernel that takes none of the cases gets those of `model_cases`. Weights in layouts are prepared by `backend`, and
    must be restored with every bit.
    """
    name = str(dtype).removeprefix("torch.")
    worst, declined, ran = 0.0, "", False
    tolerance, note = allowed(kernel, dtype)

    def result(verdict: str, reason: str) -> CheckResult:
        return CheckResult(kernel.op, kernel.name, name, worst, tolerance, verdict, reason)

    if unusable := fault_of(kernel):
        return result(FAIL, unusable)
    spec, function = SPECS[kernel.op], function_of(kernel, backend)
    for draw, cases in [(n, _cases) for n in range(draws)] + [(n, _model_cases) for n in range(draws)]:
        if ran and cases is _model_cases:
            break
        drawn = [cases(kernel, dtype, seed + 2 * draw + n) for n in (0, 1)]
        for number, (case, other) in enumerate(zip(*drawn, strict=True)):
            for with_grad in (False, True) if case.grad else (False,):
                part = "forward and gradients" if with_grad else "forward"
                try:
                    verdict = supports(kernel, OpCall(kernel.op, device, dtype, with_grad, case.sizes))
                    if not verdict.ok:
                        declined = declined or verdict.reason
                        continue
                    if beyond := beyond_limits(kernel, case, dtype, tokens):
                        declined = declined or beyond
                        continue
                    if tolerance > spec.tolerance.get(dtype, 0.0) and not kernel.tolerance_reason:
                        return result(FAIL, note)
                    ran = True
                    error = compare(function, case, other, device, dtype, with_grad)
                    if spec.jumps and tolerance < error:
                        for more in REDRAWN:
                            one, two = (cases(kernel, dtype, seed + more + n)[number] for n in (0, 1))
                            error = min(error, compare(function, one, two, device, dtype, with_grad))
                    promised = tolerance < spec.tolerance.get(dtype, 0.0)
                    if not promised and tolerance < error <= AS_REFERENCE * _own_error(case, other, dtype, with_grad):
                        error = tolerance
                    if number == 0 and draw == 0 and not with_grad:
                        check_repeated(function, case, device, dtype)
                except Exception as fault:  # a plugin author wants the op and the case, not only a traceback
                    return result(FAIL, f"{case.name} ({part}): {type(fault).__name__}: {fault}")
                worst = max(worst, error)
                if not worst <= tolerance:  # `not <=` also catches NaN
                    return result(FAIL, f"{case.name} ({part}): error {worst:.1e} over tolerance {tolerance:.0e}")
    return result(PASS if ran else DECLINED, note if ran else declined)


def _own_error(case: OpCase, other: OpCase, dtype: torch.dtype, with_grad: bool) -> float:
    """Returns the error of the reference itself on the host."""
    run = SPECS[case.op].reference
    return max(relative_error(run, each, "cpu", dtype, with_grad, strided=False) for each in (case, other))


def function_of(kernel: Kernel, backend: object) -> Callable[..., Any]:
    """Returns a kernel's function for ordinary tensors: weights in layouts are prepared, and restored to compare.

    Raises:
        KernelFault: on a call whose weight changes on the way; or the backend prepares no weights.
    """
    if not kernel.layouts:
        return kernel.function
    names = list(inspect.signature(SPECS[kernel.op].reference).parameters)

    def run(*args: Any) -> Any:
        if not isinstance(backend, PreparesWeights):
            raise KernelFault("it has layouts, and its backend has no prepare_weight and restore_weight")
        given = list(args)
        for argument, layout in kernel.layouts.items():
            place = names.index(argument)
            value = args[place].detach().contiguous()
            weight = Weight(f"{kernel.op}.{argument}", layout, kernel.op, argument, tuple(value.shape), value.dtype)
            prepared = backend.prepare_weight(weight, value)
            if prepared is None:
                raise KernelFault(f"{argument} of shape {tuple(value.shape)} was not prepared in layout {layout}")
            back = backend.restore_weight(weight, prepared)
            if back.dtype != value.dtype or not same(back.cpu(), value.cpu()):
                raise KernelFault(f"{argument} came back from layout {layout} with other bits")
            given[place] = prepared
        return kernel.function(*given)

    return run


def allowed(kernel: Kernel, dtype: torch.dtype) -> tuple[float, str]:
    """Returns the error allowed to a kernel, and why it may be larger than the op's, or that it may not."""
    ours = SPECS[kernel.op].tolerance.get(dtype, 0.0) if kernel.op in SPECS else 0.0
    theirs = kernel.tolerance.get(dtype, ours)
    if theirs <= ours:
        return theirs, ""
    if kernel.tolerance_reason:
        return theirs, f"may have {theirs:.0e} instead of {ours:.0e}: {kernel.tolerance_reason}"
    return theirs, f"its tolerance {theirs:.0e} is above the op's {ours:.0e}, without a tolerance_reason"


def _cases(kernel: Kernel, dtype: torch.dtype, seed: int) -> list[OpCase]:
    large, theirs = None, SPECS[kernel.op].large
    if dtype != torch.float64 and kernel.op in OP_NAMES:
        large = large_case(kernel.op, seed, kernel.rows.get(dtype))
    elif dtype != torch.float64 and theirs is not None:
        large = theirs(torch.Generator().manual_seed(seed))
    return [*op_cases(kernel.op, seed), *([large] if large is not None else [])]


def _model_cases(kernel: Kernel, dtype: torch.dtype, seed: int) -> list[OpCase]:
    return model_cases(kernel.op, seed)


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


def beyond_limits(kernel: Kernel, case: OpCase, dtype: torch.dtype, tokens: int | None) -> str:
    """Returns why the kernel gets no call with the arguments of this case; empty if it does.

    Raises:
        KernelFault: its limits return no `Verdict`, or refuse without a reason.
    """
    given = list(case.inputs(dtype, "cpu").values())
    if tokens is not None and len(given[0]) > tokens:
        return f"{case.name}: the chip's kernels take {tokens} rows"
    if kernel.limits is None:
        return ""
    verdict: object = kernel.limits(*given)
    if not isinstance(verdict, Verdict) or (not verdict.ok and not verdict.reason):
        raise KernelFault(f"limits() returned {verdict!r}, not a Verdict with a reason")
    return "" if verdict.ok else f"{case.name}: {verdict.reason}"


def compare(
    fn: Callable[..., Any], case: OpCase, other: OpCase, device: str, dtype: torch.dtype, with_grad: bool
) -> float:
    """Returns the largest error over outputs and gradients of two calls, each relative to its largest true value.

    The first call's outputs are read after the second call, which has the same shapes, other values, and gaps of NaN
    between rows. The truth is the reference's in float64 on the host, of the values rounded to `dtype`.

    Raises:
        KernelFault: wrong shape, dtype or device, a modified input, an output that shares an input's memory or that a
            later call changed, an earlier call's result, or two runs that differ.
    """
    grad, writes = case.grad if with_grad else (), SPECS[case.op].writes
    given = [case.inputs(dtype, device), other.inputs(dtype, device, strided=True)]
    first = run_op(fn, given[0], grad, writes)
    kept = {label: value.cpu().clone() for label, value in first.items()}
    second = run_op(fn, given[1], grad, writes)
    for label, value in first.items():
        if not same(value.cpu(), kept[label]):
            raise KernelFault(f"{label} was changed by a later call")
    truths = [truth_of(each, dtype, grad) for each in (case, other)]
    for each, inputs, strided in ((case, given[0], False), (other, given[1], True)):
        _check_inputs(inputs, each.inputs(dtype, "cpu", strided=strided))
    _check_memory(given[0], first)
    worst = 0.0
    for results, truth, inputs in zip((first, second), truths, given, strict=True):
        for number, (label, want) in enumerate(truth.items()):
            got = results[label]
            is_output = label.startswith("output")
            expected = SPECS[case.op].output_dtype(number, dtype) if is_output else inputs[label].dtype
            if got.shape != want.shape or got.dtype != expected or got.device.type != device:
                raise KernelFault(
                    f"{label} is {tuple(got.shape)} {got.dtype} on {got.device.type}, "
                    f"not {tuple(want.shape)} {expected} on {device}"
                )
            error = _relative(got.cpu(), want)
            others = not torch.equal(want, truths[0][label])
            if results is second and others and not error <= STALE and same(got.cpu(), kept[label]):
                raise KernelFault(f"{label} of the second call is that of the first, which had other values")
            worst = max(worst, error)
    again = run_op(fn, given[0], grad, writes)
    for label, value in kept.items():
        if not same(again[label].cpu(), value):
            raise KernelFault(f"{label} differs between two runs on the same inputs")
    return worst


def check_repeated(fn: Callable[..., Any], case: OpCase, device: str, dtype: torch.dtype) -> None:
    """Calls a kernel many times with the same values.

    Raises:
        KernelFault: a call gives other bits than the first.
    """
    given, writes = case.inputs(dtype, device), SPECS[case.op].writes
    first = {label: value.cpu().clone() for label, value in run_op(fn, given, (), writes).items()}
    for number in range(2, CALLS + 1):
        for label, value in run_op(fn, given, (), writes).items():
            if not same(value.cpu(), first[label]):
                raise KernelFault(f"{label} of call {number} differs from that of call 1 on the same inputs")


def relative_error(
    fn: Callable[..., Any], case: OpCase, device: str, dtype: torch.dtype, with_grad: bool, strided: bool
) -> float:
    """Returns the largest error of one call over output and gradients, relative to the largest true values."""
    grad = case.grad if with_grad else ()
    given, truth = case.inputs(dtype, device, strided=strided), truth_of(case, dtype, grad)
    got = run_op(fn, given, grad, SPECS[case.op].writes)
    return max(_relative(got[label].cpu(), want) for label, want in truth.items())


def truth_of(case: OpCase, dtype: torch.dtype, grad: Sequence[str]) -> dict[str, Tensor]:
    """Returns the reference's outputs, and gradients of `grad`, in float64 of the values rounded to `dtype`."""
    exact = {k: v.double() if _is_float(v) else v for k, v in case.inputs(dtype, "cpu").items()}
    return run_op(SPECS[case.op].reference, exact, grad, SPECS[case.op].writes)


def _check_inputs(given: Mapping[str, Any], fresh: Mapping[str, Any]) -> None:
    for name, value in fresh.items():
        if isinstance(value, Tensor) and not same(given[name].detach().cpu(), value):
            raise KernelFault(f"the kernel changed its input {name}")


def _check_memory(given: Mapping[str, Any], outputs: Mapping[str, Tensor]) -> None:
    """A module adds to an output in place: that must not reach an input."""
    places = {_place(value): name for name, value in given.items() if isinstance(value, Tensor) and value.numel()}
    for label, value in outputs.items():
        if value.numel() and label.startswith("output") and (place := _place(value)) and place in places:
            raise KernelFault(f"{label} shares the memory of the input {places[place]}")


def _place(value: Tensor) -> int:
    try:
        return value.untyped_storage().data_ptr()
    except RuntimeError:  # a tensor that wraps another one, as the fake chip's, has no address
        return 0


def same(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors have the same shape and values, NaN included."""
    return one.shape == two.shape and torch.allclose(one, two, rtol=0, atol=0, equal_nan=True)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def run_op(
    fn: Callable[..., Any], args: Mapping[str, Any], grad: Sequence[str], writes: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Returns the outputs, for fixed random cotangents the gradients of arguments, and arguments that the op writes.

    An op's only or first output is ``output``, others are ``output 2``, ...; the arguments have their names.

    Args:
        fn: the kernel or the reference.
        args: arguments in order; none is changed by writes.
        grad: names of arguments that get a gradient.
        writes: names of arguments that are changed in place.
    """
    args = {name: value.clone() if name in writes else value for name, value in args.items()}
    leaves = {name: args[name].detach().requires_grad_() for name in grad}
    with torch.set_grad_enabled(bool(grad)):
        output: Tensor | tuple[Tensor, ...] = fn(*{**args, **leaves}.values())
    outputs = output if isinstance(output, tuple) else (output,)
    results = {f"output {n}" if n > 1 else "output": value.detach() for n, value in enumerate(outputs, 1)}
    if grad:
        gradients = torch.autograd.grad(outputs, list(leaves.values()), cotangents(outputs))
        results |= dict(zip(leaves, gradients, strict=True))
    return results | {name: args[name] for name in writes}


def cotangents(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Returns fixed random gradients of a loss by these outputs."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in outputs]


def _relative(got: Tensor, want: Tensor) -> float:
    """Returns the largest error over the largest true value; integers are exact or wrong.

    A true value other than zero that is below the smallest normal number of `got` counts as that number.
    """
    if not want.is_floating_point():
        return 0.0 if torch.equal(got, want) else max(1.0, float((got != want).double().mean()))
    scale = float(want.abs().max())
    error = float((got.double() - want).abs().max())
    if math.isnan(error):  # a maximum would lose it
        return math.inf
    return error / max(scale, torch.finfo(got.dtype).tiny) if scale > 0 else error
