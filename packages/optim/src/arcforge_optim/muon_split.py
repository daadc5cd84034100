"""Muon Split: each head's block of the attention up-projections is orthogonalised by itself (spec section 2)."""

from __future__ import annotations

from arcforge_core.contracts.optimizer import RoledParameter
from arcforge_core.errors import ConfigError
from arcforge_core.ops import Ops
from arcforge_optim.configs import MuonSplitConfig
from arcforge_optim.matrices import Matrices, cut
from arcforge_optim.muon import Muon


class MuonSplit(Muon):
    """Muon with parameters of role ``head_matrix`` cut by head; see `Muon` for everything else.

    GLM-5 cuts W^UQ, W^UK and W^UV, which keeps the scale of the attention logits stable without clipping.

    Raises:
        ConfigError: split_rope is set and no parameter of the model has rotary rows.
    """

    config: MuonSplitConfig

    def __init__(self, config: MuonSplitConfig, parameters: list[RoledParameter], ops: Ops | None = None) -> None:
        if config.split_rope and not any(item.role.rope_rows for item in parameters):
            accepted = "no parameter of this model declares rotary rows (rope_rows of its role)"
            raise ConfigError("optimizer.split_rope", True, accepted)
        super().__init__(config, parameters, ops)

    def cut(self, item: RoledParameter) -> list[Matrices]:
        """Returns the matrices of a parameter, one per head where it has heads."""
        return cut(item, per_head=True, split_rope=self.config.split_rope)
