"""Answers to calls that the backends share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from arcforge_core.contracts.hardware import YES, OpCall, Verdict
from arcforge_hw.torch_ops.newton_schulz import flops, reference_flops

Answer = Callable[[OpCall], Verdict]


def first_no(*answers: Answer) -> Answer:
    """Returns an answer that is the first no of `answers`, or yes."""

    def supports(call: OpCall) -> Verdict:
        return next((verdict for answer in answers if not (verdict := answer(call)).ok), YES)

    return supports


def grouped_mm(call: OpCall) -> Verdict:
    """Says whether torch can multiply grouped rows of this size."""
    if call.dtype == torch.float64:
        return Verdict(False, "torch's grouped_mm has no float64")
    if not hasattr(torch.nn.functional, "grouped_mm"):
        return Verdict(False, f"torch {torch.__version__} has no torch.nn.functional.grouped_mm")
    for name in ("hidden", "width"):
        if (size := call.sizes.get(name, 0)) * call.dtype.itemsize % 16:
            return Verdict(False, f"grouped_mm needs rows of whole 16 bytes, {name}={size} gives others")
    return YES


def fewer_on_gram(call: OpCall) -> Verdict:
    """Says whether Newton-Schulz takes fewer operations on Gram matrices, and has the digits for them."""
    if call.dtype == torch.bfloat16:
        return Verdict(False, "squares of singular values need more digits than bfloat16 has")
    if flops(*(sides := (call.sizes.get("rows", 1), call.sizes.get("columns", 1)))) >= reference_flops(*sides):
        return Verdict(False, f"the plain form has fewer operations for {sides[0]} x {sides[1]}")
    return YES
