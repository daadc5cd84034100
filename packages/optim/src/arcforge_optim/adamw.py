"""AdamW by roles, in one fused pass if the device supports it."""

from __future__ import annotations

import torch

from arcforge_core.contracts.optimizer import RoledParameter
from arcforge_core.ops.hardware import capabilities_of
from arcforge_core.train.optimizer import adamw_groups, trainable
from arcforge_optim.configs import AdamWConfig


def fused_adamw(config: AdamWConfig, parameters: list[RoledParameter]) -> torch.optim.AdamW:
    """Target of ``optimizer=adamw``: decay on matrices only; fused where the device can, otherwise by lists of tensors.

    Raises:
        ValueError: no parameter requires a gradient.
    """
    parameters = trainable(parameters)
    fused = all(capabilities_of(item.parameter.device.type).fused_adamw for item in parameters)
    kernel = {"fused": True} if fused else {"foreach": True}
    groups = adamw_groups(parameters, config.lr, config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, **kernel)
