"""Token embedding and output head."""

from __future__ import annotations

from torch import nn

from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.model.norm import Linear


class Embedding(nn.Embedding):
    """Token embedding."""

    def parameter_roles(self) -> dict[str, ParameterRole]:
        return {"weight": ParameterRole("embedding")}


class Head(Linear):
    """Output projection."""

    def parameter_roles(self) -> dict[str, ParameterRole]:
        return {"weight": ParameterRole("head")}
