"""A fault that is asked for: noise on the logits of the engine's copy of the model, another one for every token.

An engine whose distribution is off samples tokens that the policy finds next to impossible, and their gradients are as
large as any. Noise on the weights shifts a whole conversation alike; this is token by token, as different kernels,
precisions and routings of experts have it. The log-probabilities that the engine reports are those it sampled from.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from arcforge_core.data.split import key_hash
from arcforge_core.model.causal_lm import CausalLM


class LogitNoise:
    """Adds it behind a model's head.

    Args:
        model: the engine's copy.
        deviation: standard deviation, in nats.
    """

    def __init__(self, model: CausalLM, deviation: float) -> None:
        self.deviation = deviation
        self._generator = torch.Generator()
        model.lm_head.register_forward_hook(self._add)

    def reseed(self, seed: str) -> None:
        """Begins the draws anew, so that a step that is taken again samples the same."""
        self._generator.manual_seed(key_hash(seed) >> 1)

    def _add(self, head: nn.Module, inputs: tuple[Tensor, ...], logits_TV: Tensor) -> Tensor:
        noise_TV = torch.randn(logits_TV.shape, generator=self._generator)
        return logits_TV + self.deviation * noise_TV.to(logits_TV)
