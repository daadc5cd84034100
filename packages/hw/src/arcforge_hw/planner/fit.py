"""Seconds of a machine's steps as a sum over what a step computes and moves, fitted to steps of other models.

A roofline needs rates that no small model on a processor reaches, and knows nothing of the host's time. A fit has a
cost for each kind of work, such as seconds per FLOP of experts, which `arcforge_hw.planner.probes` finds on models that
are made for it. It holds for models of their kind and size.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

KINDS = ("prompt", "decode", "train")
"""Kinds of steps, each with costs of its own: they run through other kernels."""
FORMS = ("fp32", "bf16", "int8")
COSTS = (
    *(f"products_{form}" for form in FORMS),
    "products_bytes",
    *(f"experts_{form}" for form in FORMS),
    "experts_bytes",
    "core_flops",
    "core_bytes",
    "between_bytes",
    "calls",
    "experts",
    "optimizer_bytes",
    "step",
)
"""Costs: seconds per FLOP by number format, per byte, per product and per expert
of the host, and per step.

Routed experts and attention without its weights (`core`) are apart from other products.
"""
Work = Mapping[str, float]
"""Amounts of a step by the names of `COSTS`; a missing one is 0."""


@dataclass(frozen=True)
class Fit:
    """Costs by name: seconds for one unit of each kind of work."""

    costs: Mapping[str, float]

    def seconds(self, work: Work) -> dict[str, float]:
        """Returns the seconds of each kind of work."""
        return {name: self.costs.get(name, 0.0) * amount for name, amount in work.items()}


def fit(steps: Sequence[tuple[Work, float]]) -> Fit:
    """Returns the costs, none negative, with the least squares of relative errors.

    Every choice of costs that are not 0 is tried, so that the result is exact.

    Args:
        steps: the work of each measured step, and its seconds.
    """
    names = [name for name in COSTS if any(work.get(name, 0.0) for work, _ in steps)]
    work_SC = np.array([[work.get(name, 0.0) / took for name in names] for work, took in steps])
    scale_C = np.linalg.norm(work_SC, axis=0)
    best, costs = float("inf"), {}
    for count in range(1, len(names) + 1):
        for chosen in map(list, itertools.combinations(range(len(names)), count)):
            part_SC = work_SC[:, chosen] / scale_C[chosen]
            found_C, *_ = np.linalg.lstsq(part_SC, np.ones(len(steps)))
            error = float(np.square(part_SC @ found_C - 1).sum())
            if error < best - 1e-12 and (found_C >= 0).all():
                best = error
                costs = {names[c]: float(cost / scale_C[c]) for c, cost in zip(chosen, found_C, strict=True)}
    return Fit(costs)
