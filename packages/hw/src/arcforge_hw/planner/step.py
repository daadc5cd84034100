"""Seconds of a forward pass of one pipeline stage: a roofline per part of a layer, and its collectives.

Parts run one after another, work between products among them, and collectives are not overlapped with them; tokens are
divided evenly among experts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from arcforge_hw.planner.counts import TILE, LayerCount, ModelCount, Weights
from arcforge_hw.planner.fit import FORMS, Fit, Work
from arcforge_hw.planner.layout import Layout, expert_share, layer_share
from arcforge_hw.planner.machine import Machine

POINTS = 64
"""Samples of the visible keys of a prompt's queries."""


@dataclass(frozen=True)
class Load:
    """The tokens of a step that one group (tensor parallel devices) computes.

    Attributes:
        tokens: new ones.
        past: cached tokens of each sequence before them.
        sequences: among which they are divided evenly.
        heads: tokens that get logits.
    """

    tokens: float
    past: float
    sequences: float
    heads: float

    @property
    def decodes(self) -> bool:
        """Whether each sequence gets one token."""
        return self.tokens == self.sequences

    def mean(self, of_keys: Callable[[float], float]) -> float:
        """Returns the mean over queries of something that depends on their visible keys."""
        new = self.tokens / self.sequences
        if self.decodes:
            return of_keys(self.past + 1)
        return sum(of_keys(self.past + max(1.0, new * (n + 0.5) / POINTS)) for n in range(POINTS)) / POINTS


@dataclass
class Seconds:
    """Seconds of a stage by part.

    `core` is attention without its products; `between` is work between products, of all layers and of sampling.
    """

    attention: float = 0.0
    core: float = 0.0
    mlp: float = 0.0
    experts: float = 0.0
    between: float = 0.0
    head: float = 0.0
    collectives: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        products = self.attention + self.mlp + self.experts + self.head
        return products + self.core + self.between + self.collectives + self.host


def known(rate: float | None, name: str) -> float:
    """Returns a rate; callers have checked the facts that it is known."""
    assert rate is not None, name
    return rate


def stream(machine: Machine) -> float:
    """Returns the bytes/s of work between products."""
    return known(machine.bandwidth if machine.stream is None else machine.stream, "bandwidth")


def forward(
    count: ModelCount, machine: Machine, layout: Layout, load: Load, *, head: bool = True, fit: Fit | None = None
) -> Seconds:
    """Returns the fullest stage's time.

    Args:
        count: the model.
        machine: all rates that the layout needs are known.
        layout: degrees.
        load: of one group, already divided by `layout.cp`.
        head: whether the stage computes logits.
        fit: costs of this machine's steps; they take the place of all rates but those of collectives.
    """
    if fit is not None:
        return _fitted(count, machine, layout, load, head, fit)
    total = Seconds()
    for layer, times in Counter(count.layers).items():
        _add_layer(total, count, machine, layout, load, layer, times * layer_share(count, layout))
    if head:
        total.head += _products(count.head, machine, load.heads, layout.tp, 1.0)
        logits = load.heads * count.config.vocab_size * count.width / layout.tp  # read once more, to draw a token
        total.between += logits / stream(machine)
        total.host += machine.call
    if layout.pp > 1:
        sent = load.tokens / layout.tp * count.config.hidden_size * 2
        total.collectives += machine.latency + sent / _rate(machine, layout.nodes)
    return total


def _fitted(count: ModelCount, machine: Machine, layout: Layout, load: Load, head: bool, costs: Fit) -> Seconds:
    sent = replace(FREE, link=machine.link or math.inf, network=machine.network or math.inf, latency=machine.latency)
    total = Seconds(collectives=forward(count, sent, layout, load, head=head).collectives)
    for name, took in costs.seconds(work(count, layout, load, head=head)).items():
        part = PARTS.get(name, name.split("_")[0])
        setattr(total, part, getattr(total, part) + took)
    return total


PARTS = {
    **dict.fromkeys(("calls", "experts", "step"), "host"),
    **dict.fromkeys((*(f"products_{form}" for form in FORMS), "products_bytes"), "attention"),
}
"""Parts of `Seconds` by name of a cost, if they are not its first word."""
FREE = Machine(dict.fromkeys(FORMS, math.inf), math.inf, math.inf, math.inf, None, 0.0, 0.0, {}, math.inf)
"""A machine on which everything takes no time."""


def work(count: ModelCount, layout: Layout, load: Load, *, head: bool = True) -> Work:
    """Returns what a device of the fullest stage computes and moves; arguments are those of `forward`."""

    def of(free: Machine) -> Seconds:
        return forward(count, free, layout, load, head=head)

    found = {"step": 1.0, "calls": of(replace(FREE, call=1.0)).host, "experts": of(replace(FREE, expert=1.0)).host}
    found["between_bytes"] = of(replace(FREE, stream=1.0)).between
    moved = of(replace(FREE, bandwidth=1.0))
    found |= {"core_bytes": moved.core, "experts_bytes": moved.experts}
    found["products_bytes"] = moved.attention + moved.mlp + moved.head
    for form in FORMS:
        one = of(replace(FREE, flops={**FREE.flops, form: 1.0}))
        found |= {f"products_{form}": one.attention + one.mlp + one.head, f"experts_{form}": one.experts}
        found["core_flops"] = found.get("core_flops", 0.0) + one.core
    return found


def _add_layer(
    total: Seconds, count: ModelCount, machine: Machine, layout: Layout, load: Load, layer: LayerCount, times: float
) -> None:
    bandwidth, wide = known(machine.bandwidth, "bandwidth"), known(machine.flops[count.wide], count.wide)
    core = layer.core
    flops = load.tokens * load.mean(core.decode if load.decodes else core.prompt) / layout.tp
    queries = max(load.sequences, load.tokens / TILE)
    read = queries * load.mean(core.read) / (layout.tp if core.split else 1)
    total.attention += times * _products(layer.attention, machine, load.tokens, layout.tp, 1.0)
    total.core += times * max(flops / wide, read / bandwidth)
    total.mlp += times * _products(layer.mlp, machine, load.tokens, layout.tp, 1.0)
    divided = load.tokens * (layer.between.attention + layer.between.mlp + load.mean(core.chosen)) / layout.tp
    passed = load.tokens * layer.between.whole + divided
    calls = layer.attention.products + layer.mlp.products + 1
    hidden, act = count.config.hidden_size, 1 if count.rounds else 2
    if layer.expert is not None:
        everyone = load.tokens * layout.dp * layout.cp
        chosen, experts = count.config.num_experts_per_tok, count.config.n_routed_experts
        ep = layout.ep(experts)
        touched = experts * expert_share(count, layout) * (1 - (1 - chosen / experts) ** everyone)
        pairs = everyone * chosen / layout.stage
        total.experts += times * _products(layer.expert, machine, pairs, 1, touched)
        passed += pairs * layer.between.expert
        calls += layer.expert.products
        total.host += times * touched * machine.expert
        if ep > 1:
            mine = load.tokens / layout.tp * chosen * hidden * (ep - 1) / ep
            sizes = mine * act, mine * 2  # to the experts and back
            total.collectives += times * sum(_exchange(machine, layout, ep, size) for size in sizes)
    total.between += times * passed / stream(machine)
    total.collectives += times * 2 * all_reduce(machine, layout.tp, load.tokens * hidden * 2)
    if layout.cp > 1:
        gathered = load.tokens * layout.cp * core.read(1.0) * (layout.cp - 1) / layout.cp
        total.collectives += times * (machine.latency + gathered / _rate(machine, layout.nodes))
    total.host += times * calls * machine.call


def _products(weights: Weights, machine: Machine, tokens: float, split: int, copies: float) -> float:
    """Returns the time of passing tokens through weights that `split` devices share; `copies` of them are read."""
    computed = sum(tokens * flops / known(machine.flops[form], form) for form, flops in weights.flops.items())
    moved = weights.bytes * copies + tokens * weights.through
    return max(computed, moved / known(machine.bandwidth, "bandwidth")) / split


def _rate(machine: Machine, nodes: int) -> float:
    """Returns the rate between neighbours that may be on different nodes."""
    return known(machine.link if nodes == 1 else machine.network, "network")


def all_reduce(machine: Machine, devices: int, size: float) -> float:
    """Returns the time of a ring inside a node: everyone sends ``2 (n - 1) / n`` of the size."""
    if devices == 1:
        return 0.0
    return machine.latency + 2 * (devices - 1) / devices * size / known(machine.link, "link")


def _exchange(machine: Machine, layout: Layout, ep: int, sent: float) -> float:
    """Returns the time of an all-to-all in which every device sends this many bytes, evenly to all others."""
    nodes = max(1, round(layout.nodes * ep * layout.copies / layout.devices)) if layout.nodes > 1 else 1
    outside = (nodes - 1) / nodes
    inside = sent * (1 - outside) / known(machine.link, "link")
    return machine.latency + (max(inside, sent * outside / known(machine.network, "network")) if outside else inside)
