"""Weights from the trainer to the engine."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.checkpoint.sections import state_of
from arcforge_core.contracts.engine import Engine
from arcforge_core.data.split import key_hash
from arcforge_core.model.causal_lm import CausalLM


def hand_over(model: CausalLM, engine: Engine, noise: float, seed: str) -> None:
    """Gives the engine the policy's weights, as its next version.

    Args:
        model: the policy.
        engine: takes a copy.
        noise: standard deviation of relative noise on every weight; 0 for none. A fault that is asked for.
        seed: of the noise.

    Raises:
        CheckpointError: the engine refuses them.
    """
    state = {name: tensor.detach() for name, tensor in state_of(model).items()}
    engine.update_weights(perturbed(state, noise, seed) if noise else state)


def perturbed(state: dict[str, Tensor], noise: float, seed: str) -> dict[str, Tensor]:
    """Returns weights that are off by a random share of themselves."""
    generator = torch.Generator().manual_seed(key_hash(seed) >> 1)

    def off(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        factor = 1.0 + noise * torch.randn(tensor.shape, generator=generator)
        return tensor * factor.to(tensor)

    return {name: off(tensor) for name, tensor in state.items()}
