"""Learning-rate schedules: a factor in [0, 1] as a function of the run's progress in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable

from arcforge_core.train.optimizer import warm_up
from arcforge_optim.configs import CosineConfig, WsdConfig


def cosine(config: CosineConfig) -> Callable[[float], float]:
    """Target of ``schedule=cosine``: linear warm-up, then half a cosine from 1 to ``final`` (GLM-4.5 and GLM-5)."""

    def factor(progress: float) -> float:
        if progress < config.warmup:
            return warm_up(progress, config.warmup)
        decayed = min(1.0, (progress - config.warmup) / (1 - config.warmup))
        return config.final + (1 - config.final) * (1 + math.cos(math.pi * decayed)) / 2

    return factor


def wsd(config: WsdConfig) -> Callable[[float], float]:
    """Target of ``schedule=wsd``: linear warm-up, the peak rate, then a decay to ``final`` over the last ``decay``."""

    def factor(progress: float) -> float:
        decayed = min(1.0, max(0.0, (progress - (1 - config.decay)) / config.decay))
        fall = decayed if config.shape == "linear" else math.sqrt(decayed)
        return warm_up(progress, config.warmup) * (1 - (1 - config.final) * fall)

    return factor
