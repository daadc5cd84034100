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


def stage_weights(
    model: CausalLM, state: Mapping[str, Tensor], what: str, wanted: str | None = None
) -> dict[str, Tensor]:
    """Checks everything about a state dict and makes it ready to be copied; the model is only looked at.

    Args:
        model: parameters keep their dtype, device and memory; of a quantised one the state is quantised alike.
        state: names and tensors; a tied head may be absent.
        what: the update's name, for errors.
        wanted: `checksum` of the state; None compares none.

    Returns:
        The tensors with the model's dtypes and devices; those of `state` itself where these are the same. Of a model
        that was quantised, as it keeps them.

    Raises:
        CheckpointError: names, shapes or kinds of numbers do not fit, the checksum differs, or a value is not finite in
            the model's dtype.
    """
    check_state(model, state, what)
    if wanted is not None and (found := checksum(state)) != wanted:
        raise CheckpointError(f"{what}: the checksum of the tensors is {found}, not {wanted}")
    present, staged = model.state_dict(), {}
    quantised = model.quantised.forms if model.quantised is not None else {}
    for name, tensor in state.items():
        own = present["model.embed_tokens.weight" if name in quantised else name]  # what was quantised was as wide
        if tensor.is_floating_point() != own.is_floating_point():
            raise CheckpointError(f"{what}: {name} is {tensor.dtype}, the model's is {own.dtype}")
        # converted before the first copy: memory may be short, and a copy between equals cannot fail
        staged[name] = tensor.to(own.device, own.dtype)
        if own.is_floating_point() and not bool(staged[name].isfinite().all()):
            raise CheckpointError(f"{what}: {name} is not finite, as {own.dtype}")
    return staged if model.quantised is None else model.quantised.of(staged)


@torch.no_grad()
def install_weights(model: CausalLM, staged: Mapping[str, Tensor]) -> None:
    """Copies what `stage_weights` returned into the model, in place."""
    present = model.state_dict()
    for name, tensor in staged.items():
        present[name].copy_(tensor)


def replace_weights(model: CausalLM, state: Mapping[str, Tensor], what: str, wanted: str | None = None) -> None:
    """`stage_weights` and `install_weights`: all or nothing."""
    install_weights(model, stage_weights(model, state, what, wanted))
