"""GSPO (arXiv 2507.18071): clips the length-normalised ratio of a whole sequence."""

from __future__ import annotations

from torch import Tensor

from arcforge_core.contracts.algorithm import PolicyTokens
from arcforge_rl.algorithms.base import Clipped
from arcforge_rl.algorithms.surrogates import sequence_ratio
from arcforge_rl.configs.algorithms import GspoConfig


class Gspo(Clipped[GspoConfig]):
    """All tokens of a trace share one ratio, so they are clipped together."""

    reads_traces = True

    def ratio(self, tokens: PolicyTokens) -> Tensor:
        """Returns the trace's ratio for each of its tokens."""
        return sequence_ratio(tokens)
