"""Says if a model's weights and caches fit a number of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.errors import ConfigError
from arcforge_hw.planner.chip import Chip
from arcforge_hw.planner.counts import ModelCount
from arcforge_hw.planner.facts import Fact, counted, derive

GIGA = 10**9


@dataclass(frozen=True)
class Fit:
    """The memory of a deployment, in bytes over all devices.

    Attributes:
        weights: all weights once, the MTP module included; an ideal split, so a lower bound.
        cache: the cache of one sequence of the full context, without the MTP module's.
        available: unknown if the chip's memory or its devices per node are.
    """

    weights: Fact
    cache: Fact
    available: Fact

    @property
    def fits(self) -> bool | None:
        """Whether weights and one sequence are at most the available memory; None if unknown.

        False is certain; True leaves out activations, copies of weights and what the runtime takes.
        """
        if self.available.value is None:
            return None
        return self.weights.known + self.cache.known <= self.available.value

    @property
    def sequences(self) -> Fact:
        """The most sequences of the full context beside the weights, an upper bound."""
        return derive(
            "sequences", "memory less weights, divided by a sequence's cache",
            lambda there, weights, cache: max(0, there - weights) // cache, self.available, self.weights, self.cache,
        )  # fmt: skip


def fit(count: ModelCount, chip: Chip, *, nodes: int, context: int, devices: int | None = None) -> Fit:
    """Compares a model with a cluster.

    Args:
        count: the model in its number format.
        chip: of the nodes.
        nodes: servers of the chip's devices per node.
        context: tokens of a sequence.
        devices: per node, in place of the chip's own number.

    Raises:
        ConfigError: `nodes` or `context` is impossible.
    """
    if nodes < 1:
        raise ConfigError("nodes", nodes, "must be at least 1")
    check_positions("context", context, count)
    per_node = chip.devices_per_node if devices is None else given_devices(devices)
    return Fit(
        counted(count.bytes, "B", f"tensors of the model with weights={count.weights}"),
        counted(count.cache(context), "B", f"cache_spec() of all layers, {context} tokens"),
        derive("B", "memory x devices x nodes", lambda m, d: int(m * d * nodes * GIGA), chip.memory, per_node),
    )


def given_devices(devices: int) -> Fact:
    """Returns the devices per node that the user named."""
    return Fact("assumed", "named with the cluster", devices, "devices")


def check_positions(field: str, tokens: int, count: ModelCount) -> None:
    """Raises `ConfigError` unless a sequence may have this many tokens."""
    most = count.config.max_position_embeddings
    if not 1 <= tokens <= most:
        raise ConfigError(field, tokens, f"must be 1 to the model's {most} positions")
