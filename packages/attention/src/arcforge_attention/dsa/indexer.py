"""The lightning indexer (spec 1.4): a few cheap heads that score every visible key for a query.

``I[t, s] = sum_j w[t, j] * ReLU(q[t, j] . k[s])``; the constants ``I^-0.5 * K^-0.5`` are folded into w. The rotated
part comes FIRST in an index vector, unlike in the attention heads.

Shapes: T tokens, D hidden, Q query latent, I index heads, K index head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcforge_core.config.schema import ModelConfig
from arcforge_core.model.norm import Linear
from arcforge_core.ops import Fused, op, reference

KEY_NORM_EPS = 1e-6


class IndexKeyNorm(nn.LayerNorm):
    """LayerNorm with bias, computed in fp32 for every input dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last axis; keeps the dtype."""
        wide = torch.promote_types(x.dtype, torch.float32)
        out = F.layer_norm(x.to(wide), self.normalized_shape, self.weight.to(wide), self.bias.to(wide), self.eps)
        return out.to(x.dtype)


class Indexer(nn.Module):
    """Projections of the indexer; the selection itself is the op ``indexer_topk``."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = model.index_n_heads, model.index_head_dim
        self.rotary = model.qk_rope_head_dim
        self.wq_b = Linear(model.q_lora_rank, self.heads * self.head_dim)
        self.wk = Linear(model.hidden_size, self.head_dim)
        self.k_norm = IndexKeyNorm(self.head_dim, eps=KEY_NORM_EPS)
        self.weights_proj = Linear(model.hidden_size, self.heads)
        self.rope = op(reference.rope, dim=self.rotary)
        parts, sizes = ("wk", "k_norm", "weights_proj"), {"heads": self.heads, "head_dim": self.head_dim}
        self.prolog = Fused("index_prolog", parts, (Linear, IndexKeyNorm), hidden=model.hidden_size, **sizes)

    def project(self, x_TD: Tensor, q_TQ: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the results of `queries`, `keys` and `weights`."""
        if not self.prolog.serves(len(x_TD)):
            return self.queries(q_TQ, rope), self.keys(x_TD, rope), self.weights(x_TD)
        projected: tuple[Tensor, Tensor, Tensor] = self.prolog(
            x_TD, self.wq_b(q_TQ), self.wk.weight, self.k_norm.weight, self.k_norm.bias, self.weights_proj.weight,
            *rope, self.k_norm.eps,
        )  # fmt: skip
        return projected

    def queries(self, q_TQ: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Returns index queries [T, I, K] from the normalised query latent."""
        return self._rotate(self.wq_b(q_TQ).unflatten(-1, (self.heads, self.head_dim)), rope)

    def keys(self, x_TD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Returns index keys [T, K], one for all heads."""
        return self._rotate(self.k_norm(self.wk(x_TD))[:, None], rope)[:, 0]

    def weights(self, x_TD: Tensor) -> Tensor:
        """Returns head weights [T, I], fp32 or wider, including the constants."""
        wide = torch.promote_types(x_TD.dtype, torch.float32)
        w_TI: Tensor = self.weights_proj(x_TD.to(wide)) * (self.heads * self.head_dim) ** -0.5
        return w_TI

    def flops(self, keys_T: Tensor) -> Tensor:
        """Returns forward FLOPs [T] of queries that score this many keys: projections, dot products, weighted sums."""
        projections = sum(p.numel() for p in self.parameters() if p.ndim == 2)
        return 2 * (projections + self.heads * (self.head_dim + 1) * keys_T)

    def _rotate(self, x_TIK: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        rotated = self.rope(x_TIK[..., : self.rotary], *rope)
        return torch.cat((rotated, x_TIK[..., self.rotary :]), dim=-1)
