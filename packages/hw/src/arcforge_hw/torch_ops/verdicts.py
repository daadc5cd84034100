"""Verdicts on op calls that the backends share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from arcforge_core.contracts.hardware import YES, OpCall, Verdict
from arcforge_hw.torch_ops.newton_schulz import flops, reference_flops

Answer = Callable[[OpCall], Verdict]


def first_no(*answers: Answer) -> Answer:
    """Returns a function that gives the first negative verdict of `answers`, or a positive one."""

    def supports(call: OpCall) -> Verdict:
        return next((verdict for answer in answers if not (verdict := answer(call)).ok), YES)

    return supports


def on_device(device_type: str, otherwise: str = "untested here") -> Answer:
    """Returns a function that accepts float32, bfloat16 and float64 on a device; other dtypes are `otherwise`."""

    def supports(call: OpCall) -> Verdict:
        if call.device_type != device_type:
            return Verdict(False, f"device {call.device_type} is not {device_type}")
        if call.dtype not in (torch.float32, torch.bfloat16, torch.float64):
            return Verdict(False, f"{call.dtype} is {otherwise}")
        return YES

    return supports


def grouped_mm(call: OpCall) -> Verdict:
    """Returns whether torch supports grouped products of this size."""
    if call.dtype == torch.float64:
        return Verdict(False, "torch's grouped_mm does not support float64")
    if not hasattr(torch.nn.functional, "grouped_mm"):
        return Verdict(False, f"torch {torch.__version__} has no torch.nn.functional.grouped_mm")
    for name in ("hidden", "width"):
        if (size := call.sizes.get(name, 0)) * call.dtype.itemsize % 16:
            return Verdict(False, f"grouped_mm needs rows in multiples of 16 bytes, not {name}={size}")
    return YES


def fewer_on_gram(call: OpCall) -> Verdict:
    """Returns whether Newton-Schulz on Gram matrices takes fewer operations, in a dtype that is precise enough."""
    if call.dtype == torch.bfloat16:
        return Verdict(False, "squares of singular values need more precision than bfloat16")
    if flops(*(sides := (call.sizes.get("rows", 1), call.sizes.get("columns", 1)))) >= reference_flops(*sides):
        return Verdict(False, f"the plain form has fewer operations for {sides[0]} x {sides[1]}")
    return YES
