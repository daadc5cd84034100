"""Results of layers and the model. Shapes: B batch, S length, T ragged tokens, D hidden, V vocabulary, E experts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockOutput:
    """A layer's result.

    Attributes:
        x_TD: hidden states after the layer.
        aux_losses: scalars by name; ``balance`` from a mixture layer without a cache.
        figures: scalars of the attention by name, for logging.
        load_E: tokens per expert; None in a dense layer and with a cache.
        to_next_layer: keyword arguments for the next layer's attention.
    """

    x_TD: Tensor
    aux_losses: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)
    load_E: Tensor | None = None
    to_next_layer: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CausalLMOutput:
    """Logits: [B, S, V] for plain batches, [T, V] for ragged ones."""

    logits: Tensor


@dataclass
class HiddenOutput:
    """Hidden states after the final norm, and the layers' losses and statistics.

    Attributes:
        hidden_TD: ready for the head.
        aux_losses: means over the layers that have them, by name.
        figures: means over the layers that have them, by name, without gradient.
        expert_loads: tokens per expert [E] by layer number (the MTP module's number is num_hidden_layers).
    """

    hidden_TD: Tensor
    aux_losses: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)
    expert_loads: dict[int, Tensor] = field(default_factory=dict)


def means(values: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Returns the mean of each name's scalars."""
    return {name: torch.stack(scalars).mean() for name, scalars in values.items()}
