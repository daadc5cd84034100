"""Log-probabilities of sampled tokens under a model. S: sampled tokens; D: hidden; V: vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from arcforge_core.model.causal_lm import CausalLM
from arcforge_rl.learning.tokens import PolicyMicro

CHUNK = 1 << 22
"""Logits that are held at a time."""


@dataclass(frozen=True)
class Read:
    """What a model says about the sampled tokens of a micro-batch, fp32.

    Attributes:
        logprobs_S: natural-log probability of each.
        entropy_S: of the distribution that each was sampled from, no gradient.
        hidden_SD: hidden states that predict them.
    """

    logprobs_S: Tensor
    entropy_S: Tensor
    hidden_SD: Tensor


def read(model: CausalLM, micro: PolicyMicro) -> Read:
    """Runs a model over a micro-batch. Logits are made in chunks, and anew for the gradient, so that S x V never is."""
    hidden_SD = model.hidden(micro.tokens_T, micro.batch).hidden_TD[micro.row_S]
    rows = max(1, CHUNK // model.config.vocab_size)
    parts = []
    for part_SD, target_S in zip(hidden_SD.split(rows), micro.target_S.split(rows), strict=True):
        if torch.is_grad_enabled() and len(hidden_SD) > rows:
            parts.append(checkpoint(_score, model, part_SD, target_S, use_reentrant=False))
        else:
            parts.append(_score(model, part_SD, target_S))
    logprobs, entropies = zip(*parts, strict=True)
    return Read(torch.cat(logprobs), torch.cat(entropies), hidden_SD)


def _score(model: CausalLM, hidden_SD: Tensor, target_S: Tensor) -> tuple[Tensor, Tensor]:
    logits_SV = model.logits(hidden_SD)
    logits_SV = logits_SV.to(torch.promote_types(logits_SV.dtype, torch.float32))
    logprobs_SV = logits_SV.log_softmax(-1)
    with torch.no_grad():
        entropy_S = -(logprobs_SV.exp() * logprobs_SV).sum(-1)
    return logprobs_SV.gather(1, target_S[:, None]).squeeze(1), entropy_S


class Critic(nn.Module):
    """Values from the policy's last hidden states; zero in the beginning. Its loss does not reach the policy."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden_SD: Tensor) -> Tensor:
        """Returns values, fp32 [S]."""
        value_S: Tensor = self.head(hidden_SD.detach().float()).squeeze(-1)
        return value_S
