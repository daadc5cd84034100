"""SimpleGDN: the delta rule on the projections of grouped-query attention, without a convolution or new parameters.

Spec 3.5: the paper maps pretrained query, key and value projections into the linear recurrence and prints no equation.
What it leaves open is decided here:

- q and k have length 1. With beta 1 a step then projects the state off its key and writes the value there: what is
  stored cannot grow without bound, so that no gate is needed.
- Key/value heads are repeated, so that each query head has a state of its own.
- The output is not scaled: a query like a stored key reads that key's value in the size that `o_proj` was trained on.
- `decay` is 0 or fixed by head, `beta` a constant, and queries and keys are rotated as in the layers that they come
  from (`rope`).

Shapes: T new tokens, H heads, G key/value heads, K head size.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from arcforge_attention.configs import SimpleGdnConfig
from arcforge_attention.delta_rule import DeltaRule, States, l2_normed
from arcforge_attention.entries import join
from arcforge_attention.gqa import GQA
from arcforge_attention.hybrid import Hybrid
from arcforge_core.config.schema import ModelConfig
from arcforge_core.contracts.attention import AttentionOutput, CacheSpec, LayerCache, Rope
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.ops.dispatch import Binder

HALF_LIVES = 32.0, 32768.0
"""Tokens after which the first and the last head have forgotten half, with ``decay=fixed``."""


class SimpleGatedDeltaNet(GQA):
    """The layer: the parameters of `GQA`, name by name."""

    remember = None  # type: ignore[assignment]
    """It is not `Remembers`: a state is not left alone by the tokens behind it."""

    def __init__(self, config: SimpleGdnConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__(config, model, layer_index)
        self.beta, self.rotated = config.beta, config.rope
        self.log_decays = log_decays(self.heads) if config.decay == "fixed" else [0.0] * self.heads
        self.delta_rule = DeltaRule(self.heads, self.head_dim, self.head_dim, scale=1.0)

    def bind_ops(self, bind: Binder) -> None:
        """Resolves the rotation; attention itself is not used."""
        self.rope = bind("rope", dim=self.rotary)

    def forward(
        self, x_TD: Tensor, batch: SequenceBatch, cache: LayerCache | None = None, *, rope: Rope
    ) -> AttentionOutput:
        """Runs the recurrence; see the contract."""
        q_THK, k_TGK, v_TGK = self.project(x_TD, rope if self.rotated else None)
        q_THK, k_TGK = l2_normed(q_THK), l2_normed(k_TGK)
        k_THK, v_THK = (x.repeat_interleave(self.heads // self.groups, dim=1) for x in (k_TGK, v_TGK))
        wide = torch.promote_types(x_TD.dtype, torch.float32)
        g_TH = torch.tensor(self.log_decays, dtype=wide, device=x_TD.device).expand(len(x_TD), -1)
        beta_TH = torch.full_like(g_TH, self.beta)
        states, outs = States(batch, cache), []
        for group in batch.plan.groups():
            taken = (group.take(x) for x in (q_THK, k_THK, v_THK, g_TH, beta_TH))
            outs.append(self.delta_rule(*taken, states, group))
        return AttentionOutput(self.o_proj(join(batch, outs).flatten(1)))

    def branch(self, batch: SequenceBatch) -> Hashable:
        """None: the recurrence is not made of recordable kernels."""
        return None

    def cache_spec(self) -> CacheSpec:
        """Returns the state."""
        return (self.delta_rule.entry,)

    def training_flops(self, keys_T: Tensor) -> Tensor:
        """Returns those of the recurrence, the same for every token."""
        return self.delta_rule.training_flops(keys_T)


def log_decays(heads: int) -> list[float]:
    """Returns the logarithms of the heads' decays, half-lives spread geometrically; a single head has the longest."""
    first, last = HALF_LIVES
    lives = [last * (first / last) ** ((heads - 1 - head) / max(heads - 1, 1)) for head in range(heads)]
    return [-math.log(2) / life for life in lives]


class SimpleGdn(Hybrid):
    """Target of ``attention=simple_gdn``."""

    starts_from: ClassVar[tuple[str, ...]] = ("gqa", "swa", "swa_pattern")
    replacement = SimpleGatedDeltaNet
