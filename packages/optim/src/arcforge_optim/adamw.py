"""AdamW by roles, in one fused pass if the device supports it."""

from __future__ import annotations

import torch

from arcforge_core.contracts.optimizer import RoledParameter
from arcforge_core.train.optimizer import adamw_groups, trainable
from arcforge_optim.configs import AdamWConfig
from arcforge_optim.muon import FUSED_DEVICES


def fused_adamw(config: AdamWConfig, parameters: list[RoledParameter]) -> torch.optim.AdamW:
    """Target of ``optimizer=adamw``: decay on matrices only; fused on CPU and CUDA, by lists of tensors elsewhere.

    Raises:
        ValueError: no parameter requires a gradient.
    """
    parameters = trainable(parameters)
    fused = all(item.parameter.device.type in FUSED_DEVICES for item in parameters)
    kernel = {"fused": True} if fused else {"foreach": True}
    groups = adamw_groups(parameters, config.lr, config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, **kernel)
