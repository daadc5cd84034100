"""DAPO (arXiv 2503.14476): clip-higher, mean over all tokens, soft overlong punishment."""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_core.contracts.algorithm import Trace
from arcforge_rl.algorithms import scoring
from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.configs.algorithms import DapoConfig


class Dapo(Clipped[DapoConfig]):
    """The rollout loop implements DAPO's dynamic sampling, replacing groups of equal rewards, for every algorithm."""

    def advantages(self, traces: Sequence[Trace]) -> list[float]:
        """Returns advantages of the rewards minus the punishment."""
        if self.components is not None:  # then there is none
            return super().advantages(traces)
        return scoring.advantages(traces, self.config, lambda trace: trace.reward - self.punishment(trace.num_sampled))

    def punishment(self, length: int) -> float:
        """Returns 0 up to the buffer, 1 from `overlong_tokens` on, and a linear ramp between (eq. 13)."""
        most, buffer = self.config.overlong_tokens, self.config.overlong_buffer
        if not most or length <= most - buffer:
            return 0.0
        return min((length - (most - buffer)) / buffer, 1.0) if buffer else 1.0
