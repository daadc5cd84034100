"""How a model is spread over devices, which layouts exist, and the bytes of weights that each leaves on a device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from arcforge_hw.planner.counts import ModelCount


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism; their product is the number of devices.

    Attributes:
        tp: tensor parallel: heads and widths of attention, dense layers and head are divided.
        cp: context parallel: the tokens of a sequence are divided.
        dp: groups that compute different sequences with the same attention weights.
        pp: pipeline stages.
        nodes: servers that the devices of one copy are in.
        copies: of the whole deployment, which share nothing.

    Routed experts of a stage are divided among its ``tp x cp x dp`` devices (EP), as far as there are experts.
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    nodes: int = 1
    copies: int = 1

    @property
    def devices(self) -> int:
        """All devices."""
        return self.stage * self.pp * self.copies

    @property
    def stage(self) -> int:
        """Devices of a pipeline stage."""
        return self.tp * self.cp * self.dp

    def ep(self, experts: int) -> int:
        """Returns the devices that share a stage's experts: the largest divisor of the stage not above `experts`."""
        return max(n for n in divisors(self.stage) if n <= experts)

    def __str__(self) -> str:
        degrees = {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp, "copies": self.copies}
        return " ".join(f"{name}{degree}" for name, degree in degrees.items() if degree > 1) or "one device"


def divisors(number: int) -> list[int]:
    """Returns the divisors in ascending order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def layouts(count: ModelCount, nodes: int, devices_per_node: int, *, cp: bool, copies: bool = True) -> Iterator[Layout]:
    """Yields every layout of all devices whose degrees the model allows.

    Tensor parallelism stays inside a node and divides the heads; stages are whole layers; a copy has whole nodes or a
    part of one.

    Args:
        count: the model.
        nodes: servers.
        devices_per_node: devices of each.
        cp: whether to divide sequences.
        copies: whether to divide the devices among copies.
    """
    for each in divisors(nodes * devices_per_node):
        own = nodes * devices_per_node // each
        whole = own % devices_per_node == 0
        if (copies or each == 1) and (whole or devices_per_node % own == 0):
            used = own // devices_per_node if whole else 1
            yield from (replace(layout, copies=each) for layout in _layouts(count, used, own // used, cp))


def _layouts(count: ModelCount, nodes: int, devices_per_node: int, cp: bool) -> Iterator[Layout]:
    devices = nodes * devices_per_node
    for pp in divisors(devices):
        if pp > len(count.layers):
            break
        for tp in divisors(math.gcd(devices // pp, devices_per_node)):
            if count.config.num_attention_heads % tp:
                continue
            for split in divisors(devices // pp // tp) if cp else [1]:
                yield Layout(tp, split, devices // pp // tp // split, pp, nodes)


def layer_share(count: ModelCount, layout: Layout) -> float:
    """Returns the fullest stage's share of the layers."""
    return math.ceil(len(count.layers) / layout.pp) / len(count.layers)


def expert_share(count: ModelCount, layout: Layout) -> float:
    """Returns the share of a stage's experts that the fullest device holds."""
    experts = count.config.n_routed_experts
    return math.ceil(experts / layout.ep(experts)) / experts


def weight_bytes(count: ModelCount, layout: Layout) -> float:
    """Returns the bytes of weights on the fullest device, the MTP module included."""
    experts = count.config.n_routed_experts * expert_share(count, layout)
    layers = sum(
        (layer.attention.bytes + layer.mlp.bytes) / layout.tp + (layer.expert.bytes * experts if layer.expert else 0)
        for layer in count.layers
    )
    ends = [count.embedding.bytes, count.head.bytes + count.mtp.bytes]
    return layers * layer_share(count, layout) + (sum(ends) if layout.pp == 1 else max(ends)) / layout.tp


def cache_bytes_on_device(count: ModelCount, layout: Layout, tokens: int) -> float:
    """Returns the bytes that one sequence of its group keeps on a device."""
    split = layout.tp if all(layer.core.split for layer in count.layers) else 1
    split = min(split, count.config.num_key_value_heads) if split > 1 else 1
    return count.cache(tokens) * layer_share(count, layout) / split
