"""The best layout for a training step: bf16 weights, fp32 master weights and optimizer state, everything recomputed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from arcforge_hw.planner.counts import ModelCount
from arcforge_hw.planner.fit import Work
from arcforge_hw.planner.layout import Layout, expert_share, layer_share, layouts
from arcforge_hw.planner.machine import Machine
from arcforge_hw.planner.step import Load, Seconds, forward, known, stream, work

WORKING = 4
"""Bytes per value of weights and gradients in bf16."""
OPTIMIZER = 12
"""Bytes per value of master weights and two moments in fp32, divided among replicas (ZeRO-1)."""
PASSES = 4
"""Forward, the same once more for what was not kept, and two products backward."""
ADAMW, CLIPPING = 6, 3
"""Values of master weights and moments that AdamW reads and writes for each parameter; of its gradient that clipping
reads, to measure it, and reads and writes, to scale it. AdamW reads the gradient, and writes a bf16 weight, beside."""


@dataclass(frozen=True)
class Training:
    """A training step.

    Attributes:
        layout: degrees.
        seconds: of a step.
        memory: bytes on the fullest device.
        flops: that the step needs, recomputation not counted.
        parts: seconds of one forward pass of a stage over one micro-batch.
    """

    layout: Layout
    seconds: float
    memory: float
    flops: float
    parts: Seconds


def state_bytes(count: ModelCount, layout: Layout) -> float:
    """Returns the bytes of weights, gradients and optimizer on the fullest device."""
    alone, spread = _values(count, layout)
    copies = layout.stage / layout.ep(count.config.n_routed_experts)
    return alone * (WORKING + OPTIMIZER / (layout.dp * layout.cp)) + spread * (WORKING + OPTIMIZER / copies)


def optimizer_bytes(count: ModelCount, layout: Layout) -> float:
    """Returns the bytes that clipping and AdamW move on the fullest device; replicas divide the parameters (ZeRO-1)."""
    alone, spread = _values(count, layout)
    copies = layout.stage / layout.ep(count.config.n_routed_experts)
    gradient, rounded = count.width, 0 if count.width == 4 else count.width
    moved = 4 * ADAMW + gradient + rounded + CLIPPING * gradient
    return (alone / (layout.dp * layout.cp) + spread / copies) * moved


def _values(count: ModelCount, layout: Layout) -> tuple[float, float]:
    """Returns the parameters on the fullest device: those that all its replicas have, and those of its experts."""
    experts = count.config.n_routed_experts
    shared = sum(layer.attention.values + layer.mlp.values for layer in count.layers)
    routed = sum(layer.expert.values * experts for layer in count.layers if layer.expert)
    ends = count.embedding.values + count.head.values + count.mtp.values
    alone = (shared * layer_share(count, layout) + ends) / layout.tp
    return alone, routed * layer_share(count, layout) * expert_share(count, layout)


def training_step(
    count: ModelCount, machine: Machine, layout: Layout, batch: int, sequence: int, together: int = 1
) -> Training:
    """Returns a step of `batch` tokens.

    The group's micro-batches, each `together` sequences, pass the stages one after another (1F1B); gradients are added
    up over replicas at the end.
    """
    own = batch / sequence / layout.dp / together  # micro-batches of a group
    load = _micro_batch(layout, sequence, together)
    fit = machine.fit(count.formats, "train")
    parts = forward(count, machine, layout, load, fit=fit)
    cost = count.training((sequence + 1) / 2)
    passes = (own + layout.pp - 1) * _with_mtp(count, sequence)
    if fit is None:
        compute = (parts.total - parts.collectives) * PASSES + parts.collectives * (PASSES - 1)
        seconds = compute * passes + optimizer_bytes(count, layout) / stream(machine)
    else:  # whose costs are of all passes together
        computed = sum(fit.seconds(step_work(count, layout, batch, sequence, together)).values())
        seconds = computed + parts.collectives * (PASSES - 1) * passes
    seconds += _gradients(count, machine, layout)
    kept = load.tokens / layout.tp * count.config.hidden_size * 2
    kept *= len(count.layers) * layer_share(count, layout) * min(layout.pp, own)
    flops = batch * cost.main * _with_mtp(count, sequence)
    return Training(layout, seconds, state_bytes(count, layout) + kept, flops, parts)


def step_work(count: ModelCount, layout: Layout, batch: int, sequence: int, together: int = 1) -> Work:
    """Returns the work of a step: one forward pass over each micro-batch, and the optimizer's; see `training_step`."""
    passes = (batch / sequence / layout.dp / together + layout.pp - 1) * _with_mtp(count, sequence)
    each = work(count, layout, _micro_batch(layout, sequence, together))
    found = {name: passes * amount for name, amount in each.items()}
    return {**found, "step": 1.0, "optimizer_bytes": optimizer_bytes(count, layout)}


def _micro_batch(layout: Layout, sequence: int, together: int) -> Load:
    share = sequence / layout.cp
    return Load(share * together, (sequence - share) / 2, together, share * together)


def _with_mtp(count: ModelCount, sequence: int) -> float:
    """Returns a pass with the MTP module over one without it."""
    cost, mtp = count.training((sequence + 1) / 2), count.config.mtp
    return 1 + mtp.depths * mtp.fraction * cost.mtp_depth / cost.main if count.mtp.values else 1.0


def _gradients(count: ModelCount, machine: Machine, layout: Layout) -> float:
    """Returns the time of adding up gradients over replicas and handing out the new weights."""
    replicas = layout.dp * layout.cp
    if replicas == 1:
        return 0.0
    values = sum(times * (x.attention.values + x.mlp.values) for x, times in Counter(count.layers).items())
    size = 2 * values * layer_share(count, layout) / layout.tp
    rate = known(machine.link if layout.nodes == 1 else machine.network, "network")
    return machine.latency + 2 * (replicas - 1) / replicas * size / rate


def best_training(
    count: ModelCount, machine: Machine, nodes: int, devices: int, batch: int, sequence: int
) -> Training | None:
    """Returns the fastest layout that fits; None if none does.

    Args:
        count: the model in bf16 or fp32.
        machine: the chip.
        nodes: servers.
        devices: per server.
        batch: tokens of a step.
        sequence: tokens of a sequence.
    """
    found = [
        training_step(count, machine, layout, batch, sequence)
        for layout in layouts(count, nodes, devices, cp=True, copies=False)
        if layout.dp * sequence <= batch and layout.cp <= sequence
    ]
    fits = [each for each in found if machine.memory is not None and each.memory <= machine.memory]
    return min(fits, key=lambda each: each.seconds, default=None)
