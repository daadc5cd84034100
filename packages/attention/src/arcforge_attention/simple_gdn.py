"""SimpleGDN: the delta rule on the projections of grouped-query attention, without a convolution or new parameters.

Spec 3.5: the paper maps pretrained query, key and value projections into the linear recurrence but prints no equations.
This implementation makes these choices:

- q and k have norm 1. With beta 1 a step then projects the state off its key and writes the value there, so the state
  cannot grow without bound and needs no gate.
- Key/value heads are repeated, so that each query head has its own state.
- The output is not scaled: a query equal to a stored key reads that key's value at the magnitude `o_proj` was
  trained on.
- `decay` is 0 or fixed per head, `beta` a constant, and queries and keys are rotated as in the layers that they come
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

HALF_LIVES = 32.0, 32768.0
"""Half-lives in tokens of the first and the last head, with ``decay=fixed``."""


class SimpleGatedDeltaNet(GQA):
    """The SimpleGDN layer; it has the same parameters as `GQA`."""

    write_cache = None  # type: ignore[assignment]
    """Not `WritesCache`: a state depends on all tokens in order."""
    shares_prefixes: ClassVar[bool] = False

    def __init__(self, config: SimpleGdnConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__(config, model, layer_index)
        self.beta, self.rotated = config.beta, config.rope
        self.log_decays = log_decays(self.heads) if config.decay == "fixed" else [0.0] * self.heads
        self.delta_rule = DeltaRule(self.heads, self.head_dim, self.head_dim, scale=1.0)
        del self.attention_varlen, self.attention_decode  # replaced by the recurrence

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
        """Returns None: the recurrence has no recordable kernels."""
        return None

    def cache_spec(self) -> CacheSpec:
        """Returns the state."""
        return (self.delta_rule.entry,)

    def training_flops(self, keys_T: Tensor) -> Tensor:
        """Returns the FLOPs of the recurrence, the same for every token."""
        return self.delta_rule.training_flops(keys_T)


def log_decays(heads: int) -> list[float]:
    """Returns the heads' log-decays, with half-lives spaced geometrically; a single head has the longest."""
    first, last = HALF_LIVES
    lives = [last * (first / last) ** ((heads - 1 - head) / max(heads - 1, 1)) for head in range(heads)]
    return [-math.log(2) / life for life in lives]


class SimpleGdn(Hybrid):
    """Target of ``attention=simple_gdn``."""

    starts_from: ClassVar[tuple[str, ...]] = ("gqa", "swa", "swa_pattern")
    replacement = SimpleGatedDeltaNet
