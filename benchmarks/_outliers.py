"""Outlier twins: models with the function of another one, and with the outlier channels of large models.

The residual stream is turned into its principal axes, so that few channels hold most of its size. One up channel in
`EVERY` is `FACTOR` times as large, and its column of the down projection as much smaller.

Shapes: T tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from arcforge_core.checkpoint.hf.folder import copy_beside
from arcforge_core.checkpoint.pretrained import load_pretrained, save_pretrained
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.outputs import BlockOutput
from arcforge_core.ops.dispatch import Ops
from arcforge_hw.quantization.rotations import Rotations, form_of
from arcforge_hw.quantization.transform import Transform

EVERY, FACTOR = 32, 64.0


class Axes(Rotations):
    """Turns the residual stream only."""

    @cached_property
    def query(self) -> Tensor:
        """See `Rotations.query`."""
        return torch.eye(self.config.q_lora_rank, dtype=torch.float64)

    @cached_property
    def latent(self) -> Tensor:
        """See `Rotations.latent`."""
        return torch.eye(self.config.kv_lora_rank, dtype=torch.float64)

    @cached_property
    def value(self) -> Tensor:
        """See `Rotations.value`."""
        size = self.config.v_head_dim if self.form == "mla" else self.config.head_dim
        return torch.eye(size, dtype=torch.float64)


@torch.no_grad()
def principal_axes(model: CausalLM, batches: Iterable[TrainBatch]) -> Tensor:
    """Returns the eigenvectors [D, D] of the residual stream's second moments after all layers, each layer's weighted
    by one over its size."""
    layers = model.model.layers
    moments_LDD = torch.zeros(len(layers), model.config.hidden_size, model.config.hidden_size, dtype=torch.float64)

    def keep(layer: int, out: BlockOutput) -> None:
        x_TD = out.x_TD.double()
        moments_LDD[layer] += x_TD.T @ x_TD

    hooks = [
        layer.register_forward_hook(lambda _m, _i, out, number=number: keep(number, out))
        for number, layer in enumerate(layers)
    ]
    for batch in batches:
        model.hidden(batch.tokens_T, batch.batch)
    for hook in hooks:
        hook.remove()
    axes_DD: Tensor = torch.linalg.eigh((moments_LDD / moments_LDD.diagonal(0, 1, 2).sum(-1)[:, None, None]).sum(0))[1]
    return axes_DD


@torch.no_grad()
def twin_of(model: CausalLM, axes_DD: Tensor, seed: int) -> CausalLM:
    """Returns the twin of a model in its dtype; `seed` draws the loud up channels."""
    generator = torch.Generator().manual_seed(seed)
    factors: dict[str, Tensor] = {}
    for name, x in state_of(model).items():
        place, _, kind = name.removesuffix(".weight").rpartition(".")
        if kind == "down_proj" and not name.startswith("mtp."):
            factors[f"{place}.up"] = torch.ones(*x.shape[:-2], x.shape[-1], dtype=torch.float64)
            loud = torch.rand(factors[f"{place}.up"].shape, generator=generator).argsort(-1) < x.shape[-1] // EVERY
            factors[f"{place}.up"][loud] = 1 / FACTOR
    transform = Transform(model.config, model.attention, 0, factors)
    made = transform.of(state_of(model))
    made.rotations = Axes(model.config, form_of(model.attention))
    made.rotations.__dict__["hidden"] = axes_DD
    twin = build_model(transform.transformed, model.attention, Ops(None)).to(model.dtype).eval()
    twin.load_state_dict(dict(made))
    return twin


def save_twin(folder: Path, target: Path, batches: Iterable[TrainBatch], seed: int) -> None:
    """Writes the twin of a checkpoint in fp32, with its tokenizer."""
    model = load_pretrained(folder, torch.float32)
    save_pretrained(twin_of(model, principal_axes(model, batches), seed), target)
    copy_beside(folder, target)
