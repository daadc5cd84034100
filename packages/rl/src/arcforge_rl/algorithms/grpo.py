"""GRPO (arXiv 2402.03300): advantages within a group, PPO's clip, optional KL to a reference."""

from __future__ import annotations

from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.configs.algorithms import GrpoConfig


class Grpo(Clipped[GrpoConfig]):
    """Advantages: rewards minus the group mean, over its standard deviation. Loss: mean over traces of token means."""
