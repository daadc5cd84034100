"""Tests streams and events: whether work waits for what it must, and whether the host does.

A wait that is missing shows only while the work before it still runs, so every probe queues long work first.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import Hardware, OpCall
from arcforge_core.ops.dispatch import fault_of
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.device_checks import fault_in, property_result
from arcforge_core.testing.hardware_checks import (
    DTYPES,
    FAIL,
    PASS,
    CheckResult,
    beyond_limits,
    function_of,
    run_op,
    same,
)
from arcforge_core.testing.op_case import OpCase
from arcforge_core.testing.op_inputs import op_cases

SECONDS = 0.05
"""Least time of the long work."""
PRODUCTS = 16
LARGEST = 8192


class Streams:
    """The streams of a device, and long work for them.

    Args:
        device: torch device type; its module has ``Stream``, ``Event``, ``stream``, ``current_stream`` and
            ``synchronize``, as `torch.cuda` has.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.module: Any = torch.get_device_module(device)
        self.size = 128
        while self._measured() < SECONDS and self.size < LARGEST:
            self.size *= 2

    def _measured(self) -> float:
        """Returns the seconds of `work`, after a run that compiles and allocates."""
        self.factor = torch.full((self.size, self.size), 1.0 / self.size, device=self.device)
        for _ in range(2):
            self.module.synchronize()
            start = time.perf_counter()
            self.work()
            self.module.synchronize()
            seconds = time.perf_counter() - start
        return seconds

    def work(self) -> Tensor:
        """Queues the long work in the current stream, and returns a row of ones that is its result."""
        product = self.factor
        for _ in range(PRODUCTS):
            product = product @ self.factor
        return product[0] * self.size

    def late(self, target: Tensor, value: float) -> None:
        """Queues the long work, and then writes a value that depends on it."""
        target.copy_(self.work()[: len(target)] * value)

    def zeros(self) -> Tensor:
        """Returns four zeros that every stream sees."""
        x = torch.zeros(4, device=self.device)
        self.module.synchronize()
        return x


def entering(on: Streams) -> str:
    """A stream that is entered is the current one, and the one before is afterwards."""
    before, one, two = on.module.current_stream(), on.module.Stream(), on.module.Stream()
    with on.module.stream(one):
        inside = on.module.current_stream()
        with on.module.stream(two):
            inner = on.module.current_stream()
        back = on.module.current_stream()
    if not inside == back == one or inner != two or one in (two, before):
        return "the current stream is not the one that was entered"
    return "" if on.module.current_stream() == before else "a stream that was left is still the current one"


def pending(on: Streams) -> str:
    """An event is not complete before the work before it, and is when the host has waited for it."""
    stream, event, x = on.module.Stream(), on.module.Event(), on.zeros()
    with on.module.stream(stream):
        on.late(x, 2.0)
        event.record()
        early = event.query()
    event.synchronize()
    if not _holds(x, 2.0):
        return "the host waited for an event, and the work before it had not run"
    if early:
        return "an event was complete before the work before it"
    return "" if event.query() else "an event that the host waited for is not complete"


def in_order(on: Streams) -> str:
    """A stream runs its work in the order in which it was queued."""
    stream, x = on.module.Stream(), on.zeros()
    with on.module.stream(stream):
        on.late(x, 3.0)
        x.mul_(2.0)
        x.add_(1.0)
    stream.synchronize()
    return "" if _holds(x, 7.0) else f"work queued in order, and waited for, gave {x.tolist()} instead of 7"


def waits_for_event(on: Streams) -> str:
    """A stream waits for an event of another."""
    one, two, x = on.module.Stream(), on.module.Stream(), on.zeros()
    with on.module.stream(one):
        on.late(x, 4.0)
        event = one.record_event()
    two.wait_event(event)
    with on.module.stream(two):
        seen = x + 0.0
    two.synchronize()
    return "" if _holds(seen, 4.0) else "a stream did not wait for an event of another stream"


def waits_for_stream(on: Streams) -> str:
    """The default stream waits for another, and another for the default one."""
    stream, x = on.module.Stream(), on.zeros()
    with on.module.stream(stream):
        on.late(x, 5.0)
    on.module.current_stream().wait_stream(stream)
    seen = x + 0.0
    if not _holds(seen, 5.0):
        return "the default stream did not wait for another stream"
    on.late(x, 6.0)
    stream.wait_stream(on.module.current_stream())
    with on.module.stream(stream):
        seen = x + 0.0
    stream.synchronize()
    return "" if _holds(seen, 6.0) else "a stream did not wait for the default stream"


def recorded_again(on: Streams) -> str:
    """An event that is recorded twice is at the second place."""
    stream, event, x = on.module.Stream(), on.module.Event(), on.zeros()
    event.record(stream)
    with on.module.stream(stream):
        on.late(x, 7.0)
    event.record(stream)
    on.module.current_stream().wait_event(event)
    return "" if _holds(x + 0.0, 7.0) else "an event that was recorded again is at its first place"


def whole_device(on: Streams) -> str:
    """The host waits for every stream of the device."""
    streams, cells = [on.module.Stream() for _ in range(2)], [on.zeros() for _ in range(2)]
    for stream, x in zip(streams, cells, strict=True):
        with on.module.stream(stream):
            on.late(x, 8.0)
    on.module.synchronize()
    return "" if all(_holds(x, 8.0) for x in cells) else "the host waited for the device, and a stream still worked"


def timed(on: Streams) -> str:
    """The time between two events is that of the work between them."""
    stream, ends = on.module.Stream(), [on.module.Event(enable_timing=True) for _ in range(2)]
    started = time.perf_counter()
    with on.module.stream(stream):
        ends[0].record()
        on.work()
        ends[1].record()
    stream.synchronize()
    limit, found = 1e3 * (time.perf_counter() - started), float(ends[0].elapsed_time(ends[1]))
    return "" if 0.0 < found <= 1.01 * limit else f"events are {found:.3g} ms apart in a work of {limit:.3g} ms"


PROBES: dict[str, Callable[[Streams], str]] = {
    "entering": entering,
    "pending events": pending,
    "order": in_order,
    "waiting for events": waits_for_event,
    "waiting for streams": waits_for_stream,
    "events recorded again": recorded_again,
    "waiting for the device": whole_device,
    "times": timed,
}


def check_streams(hardware: Hardware, seed: int = 0) -> Iterator[CheckResult]:
    """Yields one result for each property of streams and events, and for each kernel in a side stream.

    Where no streams are claimed there is only one result, which fails if the device has them.
    """
    device, made = hardware.identity.device, list[Streams]()
    broken = fault_in(lambda name: _appended(made, name), device)

    def fault(probe: Callable[[Streams], str]) -> str:
        return broken or fault_in(lambda _: probe(made[0]), device)

    if not hardware.capabilities.streams:
        works = not any(fault(probe) for probe in PROBES.values())
        yield property_result("streams", "capabilities say no streams, but the device has them" if works else "")
        return
    for name, probe in PROBES.items():
        yield property_result(f"streams {name}", fault(probe))
    if not broken:
        yield from check_kernel_streams(made[0], hardware, seed)


def check_kernel_streams(on: Streams, hardware: Hardware, seed: int) -> Iterator[CheckResult]:
    """Yields one result per kernel of a chip with streams: inputs that arrive late in a side stream must be waited for.

    A kernel that runs in the default stream, or in one of its own, reads what was there before.
    """
    device, tokens = hardware.identity.device, hardware.capabilities.tokens
    for kernel in hardware.kernels():
        if fault_of(kernel):
            continue  # the kernel's own rows say so
        case = op_cases(kernel.op, seed)[0]
        for dtype in DTYPES:
            call = OpCall(kernel.op, device, dtype, False, case.sizes)
            if kernel.supports(call).ok and not beyond_limits(kernel, case, dtype, tokens):
                probe = functools.partial(_late_fault, on, function_of(kernel, hardware), case, dtype)
                fault = fault_in(probe, device)
                verdict, name = FAIL if fault else PASS, str(dtype).removeprefix("torch.")
                yield CheckResult(kernel.op, kernel.name, f"{name}, stream", 0.0, 0.0, verdict, fault)
                break


def late_inputs(on: Streams, fn: Callable[..., Any], case: OpCase, dtype: torch.dtype) -> str:
    """Calls a kernel in a stream in which its floating inputs are written after long work."""
    given, stream = case.inputs(dtype, on.device), on.module.Stream()
    wanted = {label: value.cpu() for label, value in run_op(fn, given, (), SPECS[case.op].writes).items()}
    late = {
        k: v for k, v in given.items() if isinstance(v, Tensor) and v.is_floating_point() and v.device.type != "cpu"
    }
    early = {name: torch.zeros_like(value) for name, value in late.items()}
    on.module.synchronize()
    with on.module.stream(stream):
        on.work()
        for name, value in early.items():
            value.copy_(late[name])
        found = run_op(fn, {**given, **early}, (), SPECS[case.op].writes)
    stream.synchronize()
    wrong = [label for label, value in wanted.items() if not same(found[label].cpu(), value)]
    return f"{case.name}: {wrong[0]} is other in a side stream, whose inputs came late" if wrong else ""


def _late_fault(on: Streams, fn: Callable[..., Any], case: OpCase, dtype: torch.dtype, device: str) -> str:
    return late_inputs(on, fn, case, dtype)


def _appended(made: list[Streams], device: str) -> str:
    made.append(Streams(device))
    return ""


def _holds(x: Tensor, value: float) -> bool:
    """Whether every value is the wanted one, up to the rounding of the long work."""
    return bool(torch.allclose(x.cpu(), torch.tensor(value), rtol=1e-2, atol=0.0))
