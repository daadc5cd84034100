"""Parameter groups by role, core's plain AdamW, and the constant schedule.

Every group carries ``base_lr`` (the trainer sets ``lr = base_lr * schedule(progress)``) and ``names``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from arcforge_core.configs import ConstantScheduleConfig, TorchAdamWConfig
from arcforge_core.contracts.optimizer import RoledParameter

DECAYED_ROLES = ("head", "matrix", "head_matrix", "router", "expert")
"""Roles with weight decay: matrices applied to activations. Embeddings, norms and scalars have none."""


def trainable(parameters: Sequence[RoledParameter]) -> list[RoledParameter]:
    """Returns the parameters that require gradients.

    Raises:
        ValueError: no parameter does.
    """
    chosen = [item for item in parameters if item.parameter.requires_grad]
    if not chosen:
        raise ValueError(f"nothing to optimize: none of {len(parameters)} parameters requires a gradient")
    return chosen


def parameter_group(
    parameters: Sequence[RoledParameter], lr: float, weight_decay: float, **extra: Any
) -> dict[str, Any]:
    """Returns one parameter group with ``base_lr``, ``names`` and the options in `extra`."""
    return {
        "params": [item.parameter for item in parameters],
        "names": [item.name for item in parameters],
        "lr": lr,
        "base_lr": lr,
        "weight_decay": weight_decay,
        **extra,
    }


def adamw_groups(
    parameters: Sequence[RoledParameter], lr: float, weight_decay: float, **extra: Any
) -> list[dict[str, Any]]:
    """Returns the non-empty AdamW groups: roles with decay, then roles without."""
    decayed = [item for item in parameters if item.role.role in DECAYED_ROLES]
    plain = [item for item in parameters if item.role.role not in DECAYED_ROLES]
    groups = ((decayed, weight_decay), (plain, 0.0))
    return [parameter_group(items, lr, decay, **extra) for items, decay in groups if items]


def torch_adamw(config: TorchAdamWConfig, parameters: list[RoledParameter]) -> torch.optim.AdamW:
    """Target of ``optimizer=torch_adamw``: unmodified torch AdamW with decay on matrices only.

    Raises:
        ValueError: no parameter requires a gradient.
    """
    groups = adamw_groups(trainable(parameters), config.lr, config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps)


def warm_up(progress: float, fraction: float) -> float:
    """Returns the linear warm-up factor: 0 at the start of the run, 1 from `fraction` of it on."""
    return min(1.0, progress / fraction) if fraction > 0 else 1.0


def constant_schedule(config: ConstantScheduleConfig) -> Callable[[float], float]:
    """Target of ``schedule=constant``: linear warm-up from 0 to ``final`` (1 is the peak rate), then constant."""

    def factor(progress: float) -> float:
        return config.final * warm_up(progress, config.warmup)

    return factor
