"""Muon Split: each head's block of the attention up-projections is orthogonalised separately (spec section 2)."""

from __future__ import annotations

from arcforge_core.contracts.optimizer import RoledParameter
from arcforge_optim.configs import MuonSplitConfig
from arcforge_optim.matrices import Matrices, cut
from arcforge_optim.muon import Muon


class MuonSplit(Muon):
    """Muon with parameters of role ``head_matrix`` split by head; see `Muon`.

    GLM-5 cuts W^UQ, W^UK and W^UV, which keeps the scale of the attention logits stable without clipping. The rotary
    rows of a head's query up-projection belong to the same matrix as its other rows.
    """

    config: MuonSplitConfig

    def cut(self, item: RoledParameter) -> list[Matrices]:
        """Returns the matrices of a parameter, one per head where it has heads."""
        return cut(item, per_head=True)
