"""The models of a run and their memory, for the lines that a run prints when it begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from arcforge_rl.rewards.hybrid import Hybrid
from arcforge_rl.rewards.learned import Rewarded
from arcforge_rl.trainer.critic import SeparateCritic
from arcforge_rl.trainer.module import PolicyModule

MIB = 2**20
MOMENTS = 2
"""Moments of a trained parameter, as AdamW's; optimizers with fewer need less."""


@dataclass(frozen=True)
class Role:
    """A model of a run.

    Attributes:
        name: its part in the run.
        parameters: number of them.
        weights: bytes of weights and buffers.
        training: bytes of gradients and moments.
    """

    name: str
    parameters: int
    weights: int
    training: int

    @classmethod
    def of(cls, name: str, model: nn.Module) -> Role:
        """Returns the role of a model."""
        parameters = list(model.parameters())
        weights = sum(tensor.nbytes for tensor in (*parameters, *model.buffers()))
        training = sum((1 + MOMENTS) * parameter.nbytes for parameter in parameters if parameter.requires_grad)
        return cls(name, sum(parameter.numel() for parameter in parameters), weights, training)

    @property
    def line(self) -> str:
        """The role as one line."""
        training = f" + {self.training / MIB:,.1f} MiB gradients and moments" if self.training else ""
        return f"{self.name}: {self.parameters:,} parameters, {self.weights / MIB:,.1f} MiB weights{training}"


def roles_of(module: PolicyModule) -> list[Role]:
    """Returns the models in memory, the policy first."""
    return [Role.of(name, model) for name, model in _models(module)]


def _models(module: PolicyModule) -> Iterator[tuple[str, nn.Module]]:
    yield "policy", module.model
    copy: Any = getattr(module.engine, "model", None)
    if isinstance(copy, nn.Module):
        yield "engine's copy", copy
    if module.reference[0] is not None:
        yield "reference", module.reference[0]
    if module.critic is not None:
        name = "critic" if isinstance(module.critic, SeparateCritic) else "critic (a layer on the policy)"
        yield name, module.critic
    for number, teacher in enumerate(module.teachers.models if module.teachers is not None else ()):
        yield f"teacher {number + 1}", teacher
    training = module.sampler.training
    training = training.environment if isinstance(training, Hybrid) else training
    if isinstance(training, Rewarded) and training.model is not None:
        yield "reward model", training.model.model
