"""DAPO (arXiv 2503.14476): clip higher, mean over all tokens, overlong answers punished softly."""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_core.contracts.algorithm import Trace
from arcforge_rl.algorithms import scoring
from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.configs_algorithms import DapoConfig


class Dapo(Clipped[DapoConfig]):
    """Its dynamic sampling, dropping groups of equal rewards and drawing others, is the loop's, for every algorithm."""

    def advantages(self, traces: Sequence[Trace]) -> list[float]:
        """Returns advantages of rewards less the punishment."""
        return scoring.advantages(traces, self.config, lambda trace: trace.reward - self.punishment(trace.num_sampled))

    def punishment(self, length: int) -> float:
        """Returns 0 up to the buffer, 1 from `overlong_tokens` on, and a straight line between (eq. 13)."""
        most, buffer = self.config.overlong_tokens, self.config.overlong_buffer
        if not most or length <= most - buffer:
            return 0.0
        return min((length - (most - buffer)) / buffer, 1.0) if buffer else 1.0
