"""GLM-5's reasoning RL (paper 3.2, eq. 1): GRPO without KL and without tokens on which the engines disagree."""

from __future__ import annotations

from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.configs.algorithms import IcePopConfig


class IcePop(Clipped[IcePopConfig]):
    """Eq. 1: the mean over groups, traces and tokens of pop(rho; 1/beta, beta) min(r A, clip(r, 1 - 0.2, 1 + 0.28) A).

    pop, a constant weight, is the correction ``icepop``: the ratio rho of the engines in [1/2, 2], 0 outside.
    """
