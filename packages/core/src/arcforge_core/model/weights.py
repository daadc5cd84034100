"""Replacing a model's weights, all or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from arcforge_core.checkpoint.pretrained import check_state
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.causal_lm import CausalLM


def checksum(state: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of names, dtypes, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def next_version(present: int, version: int | None) -> int:
    """Returns the version after an update.

    Raises:
        ConfigError: it is not above the present one: outputs could not be told apart.
    """
    if version is not None and version <= present:
        raise ConfigError("version", version, f"must be above the present one, {present}")
    return present + 1 if version is None else version


@torch.no_grad()
def replace_weights(model: CausalLM, state: Mapping[str, Tensor], what: str, wanted: str | None = None) -> None:
    """Copies a state dict into the model, in place, after everything about it was checked.

    Args:
        model: parameters keep their dtype, device and memory; of a quantised one the state is quantised alike.
        state: names and tensors; a tied head may be absent.
        what: the update's name, for errors.
        wanted: `checksum` of the state; None compares none.

    Raises:
        CheckpointError: names or shapes do not fit, a value is not finite, or the checksum differs; the model is as
            before.
    """
    check_state(model, state, what)
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{what}: {name} is not finite")
    if wanted is not None and checksum(state) != wanted:
        raise CheckpointError(f"{what}: the checksum of the tensors is {checksum(state)}, not {wanted}")
    present = model.state_dict()
    if model.quantised is not None:
        state = model.quantised.of(state, model.device)
    # converted before the first copy: memory may be short, and a copy between equals cannot fail
    staged = {name: tensor.to(present[name].device, present[name].dtype) for name, tensor in state.items()}
    for name, tensor in staged.items():
        present[name].copy_(tensor)
