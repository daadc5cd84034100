"""The best layouts for prompts and for decoding, and requests that share the devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arcforge_hw.planner.counts import ModelCount
from arcforge_hw.planner.layout import Layout, cache_bytes_on_device, layouts, weight_bytes
from arcforge_hw.planner.machine import Machine
from arcforge_hw.planner.step import Load, Seconds, forward

CHUNK = 8192
"""Tokens of a prompt that a stage computes together; with more stages, as many chunks are under way."""


@dataclass(frozen=True)
class Prefill:
    """Prompts of one length.

    Attributes:
        layout: degrees.
        ttft: seconds of one prompt.
        prompts_per_s: of all devices.
        parts: seconds of one chunk of a stage, by part.
    """

    layout: Layout
    ttft: float
    prompts_per_s: float
    parts: Seconds


@dataclass(frozen=True)
class Decode:
    """Decoding of many sequences.

    Attributes:
        layout: degrees.
        sequences: under way on all devices.
        limit: the most that fit.
        tpot: seconds between a sequence's tokens.
        parts: seconds of a stage, by part.
    """

    layout: Layout
    sequences: int
    limit: int
    tpot: float
    parts: Seconds

    @property
    def tokens_per_s(self) -> float:
        """Of all devices."""
        return self.sequences / self.tpot


def room(count: ModelCount, machine: Machine, layout: Layout, tokens: int) -> int:
    """Returns the sequences that fit into one group's devices beside the weights; negative if these do not fit."""
    if machine.memory is None:
        raise ValueError("the memory is unknown")
    free = machine.memory - weight_bytes(count, layout)
    return -1 if free < 0 else int(free // cache_bytes_on_device(count, layout, tokens))


def best_prefill(
    count: ModelCount, machine: Machine, nodes: int, devices: int, tokens: int, limit: float | None
) -> Prefill | None:
    """Returns the layout with the most prompts per second whose first token comes within `limit` seconds.

    If none is that fast, the one with the earliest first token; None if the model fits no layout.

    Args:
        count: the model.
        machine: the chip.
        nodes: servers.
        devices: per server.
        tokens: of a prompt.
        limit: seconds, or None.
    """
    found = [
        prefill(count, machine, layout, tokens)
        for layout in layouts(count, nodes, devices, cp=True)
        if layout.cp <= tokens and room(count, machine, layout, tokens) >= 1
    ]
    within = [each for each in found if limit is None or each.ttft <= limit]
    if within:
        return max(within, key=lambda each: (each.prompts_per_s, -each.ttft))
    return min(found, key=lambda each: each.ttft, default=None)


def prefill(count: ModelCount, machine: Machine, layout: Layout, tokens: int) -> Prefill:
    """Returns the time of prompts in one layout; a group of ``cp x tp`` devices has one at a time."""
    chunks = max(1, -(-tokens // CHUNK)) if layout.pp > 1 else 1
    share = tokens / chunks / layout.cp
    seconds, parts, fit = 0.0, Seconds(), machine.fit(count.formats, "prompt")
    for chunk in range(chunks):
        load = Load(share, chunk * tokens / chunks, 1.0, 1.0 / layout.cp if chunk == chunks - 1 else 0.0)
        if layout.cp > 1 and chunk == 0:  # the keys of all, balanced among the parts
            load = Load(share, (tokens / chunks - share) / 2, 1.0, load.heads)
        parts = forward(count, machine, layout, load, fit=fit)
        seconds += parts.total
    mean = seconds / chunks
    return Prefill(layout, mean * (chunks + layout.pp - 1), layout.copies * layout.dp / seconds, parts)


def decode(count: ModelCount, machine: Machine, layout: Layout, sequences: int, keys: float) -> tuple[float, Seconds]:
    """Returns the seconds of a token and their parts, of this many sequences per group.

    With stages, as many micro-batches are under way: a sequence's next token waits for all of them.
    """
    each = sequences / layout.pp
    fit = machine.fit(count.formats, "decode")
    parts = forward(count, machine, layout, Load(each, keys, each, each), fit=fit)
    return parts.total * layout.pp, parts


def best_decode(
    count: ModelCount, machine: Machine, nodes: int, devices: int, context: int, output: int, limit: float | None
) -> Decode | None:
    """Returns the layout and concurrency with the most tokens per second within `limit` seconds per token.

    If none is that fast, the fastest token; None if the model with one sequence per group fits no layout.

    Args:
        count: the model.
        machine: the chip.
        nodes: servers.
        devices: per server.
        context: tokens of a prompt.
        output: tokens that follow it; on average half of them are there.
        limit: seconds per token, or None.
    """
    found: list[Decode] = []
    for layout in layouts(count, nodes, devices, cp=False):
        most = room(count, machine, layout, context + output)
        for sequences in _batches(most, layout.pp):
            tpot, parts = decode(count, machine, layout, sequences, context + output / 2)
            groups = layout.dp * layout.copies
            found.append(Decode(layout, sequences * groups, most * groups, tpot, parts))
            if limit is not None and tpot > limit:
                break
    within = [each for each in found if limit is None or each.tpot <= limit]
    if within:
        return max(within, key=lambda each: (each.tokens_per_s, -each.tpot))
    return min(found, key=lambda each: each.tpot, default=None)


def _batches(most: int, stages: int) -> Iterator[int]:
    """Yields concurrencies of a group: powers of two times the stages, and the most; at least one per stage."""
    size = stages
    while size < most:
        yield size
        size *= 2
    if most >= stages:
        yield most
