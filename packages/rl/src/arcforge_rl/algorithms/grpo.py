"""GRPO (arXiv 2402.03300): advantages within a group, PPO's clip, KL to a reference if asked for."""

from __future__ import annotations

from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.configs_algorithms import GrpoConfig


class Grpo(Clipped[GrpoConfig]):
    """Rewards less the group's mean over its standard deviation; mean over traces of means over tokens."""
