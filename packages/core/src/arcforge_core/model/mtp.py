"""Multi-token prediction with one module shared by all depths (spec 1.6).

Depth d combines the hidden state of depth d - 1 with the embedding of the token d places ahead:
``h^d = Layer(eh_proj[enorm(Emb(t_{i+d})); hnorm(h^{d-1})])``. Depth 0 is the main model's normed output, and each depth
passes on its normed output, so training matches serving.

A token's cache entry depends only on that token's hidden state and the next token, not on the attention. A server
therefore keeps the cache up to date with `MtpModule.write_cache`, which costs little more than a projection, and runs
the whole layer only to draft.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import LayerCache, WritesCache
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.block import Block
from arcforge_core.model.norm import Linear, RMSNorm
from arcforge_core.model.outputs import BlockOutput


class SharedHead(nn.Module):
    """The module's output norm; the head itself is the main model's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rot = Linear(config.hidden_size, config.hidden_size) if config.mtp.rotated else None

    def forward(self, x_TD: Tensor) -> Tensor:
        """Returns hidden states [T, D] for the main model's head."""
        normed_TD: Tensor = self.norm(x_TD)
        return normed_TD if self.rot is None else self.rot(normed_TD)


class MtpModule(Block):
    """A full mixture layer with its own input projection and output norm; names as in the checkpoint's layer 78."""

    def __init__(self, config: ModelConfig, attention: AttentionConfig) -> None:
        super().__init__(config, attention, config.num_hidden_layers)
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = Linear(2 * config.hidden_size, config.hidden_size)
        self.shared_head = SharedHead(config)
        self.rot = Linear(config.hidden_size, config.hidden_size) if config.mtp.rotated else None

    def step(
        self,
        embedding_TD: Tensor,
        hidden_TD: Tensor,
        batch: SequenceBatch,
        rope: tuple[Tensor, Tensor],
        cache: LayerCache | None = None,
    ) -> BlockOutput:
        """Runs one depth; the returned hidden states are normed, ready for the head and for the next depth."""
        out = self(self.combine(embedding_TD, hidden_TD), batch, rope, cache)
        return BlockOutput(self.shared_head(out.x_TD), out.aux_losses, out.figures, out.load_E)

    def write_cache(
        self,
        embedding_TD: Tensor,
        hidden_TD: Tensor,
        batch: SequenceBatch,
        rope: tuple[Tensor, Tensor],
        cache: LayerCache,
    ) -> None:
        """Writes the cache entries that `step` would; runs the whole step if the attention is not `WritesCache`."""
        if isinstance(self.self_attn, WritesCache):
            x_TD = self.input_layernorm(self.combine(embedding_TD, hidden_TD))
            self.self_attn.write_cache(x_TD, batch, cache, rope=rope)
        else:
            self.step(embedding_TD, hidden_TD, batch, rope, cache)

    def combine(self, embedding_TD: Tensor, hidden_TD: Tensor) -> Tensor:
        """Returns the layer's input, projected from the embedding followed by the hidden state."""
        if self.rot is not None:  # the final norm's gain, which the head contains, in the rotated basis
            hidden_TD = self.rot(hidden_TD)
        x_TD: Tensor = self.eh_proj(torch.cat([self.enorm(embedding_TD), self.hnorm(hidden_TD)], dim=-1))
        return x_TD


def shift_left(x_T: Tensor, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
    """Shifts each segment's values one position to the left.

    Returns:
        (shifted values, bool [T]: False at each segment's last position, which repeats its value).
    """
    last_N = (batch.cu_query[1:] - 1).to(torch.int64).to(x_T.device)
    valid_T = torch.ones(x_T.shape[0], dtype=torch.bool, device=x_T.device)
    valid_T[last_N] = False
    return torch.where(valid_T, x_T.roll(-1), x_T), valid_T
