"""Weight initialisation."""

from __future__ import annotations

import torch
from torch import nn

from arcforge_core.config.schema import ModelConfig


@torch.no_grad()
def init_weights(model: nn.Module, config: ModelConfig) -> None:
    """Draws every weight with two or more axes from N(0, initializer_range^2); norms start at 1, biases at 0.

    The projections that write into the residual stream are scaled down by sqrt(2 * layers), so its variance does not
    grow with depth. Modules with a method ``init_own_weights`` then draw those of their weights that need another
    distribution.
    """
    residual = ("o_proj.weight", "down_proj.weight", "down_proj")
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        std = config.initializer_range
        if name.endswith(residual):
            std /= (2 * config.num_hidden_layers) ** 0.5
        parameter.normal_(0.0, std)
    for module in model.modules():
        init_own_weights = getattr(module, "init_own_weights", None)
        if init_own_weights is not None:
            init_own_weights()
