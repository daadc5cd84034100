"""Replaces a model's weights, all or none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.adapt.low_rank import is_low_rank, keep_base, merge_update, without_adapters
from arcforge_core.model.adapt.prepared import tensors_of
from arcforge_core.model.adapt.quantised import quantised_state
from arcforge_core.model.adapt.state import check_state
from arcforge_core.model.causal_lm import CausalLM


def checksum(state: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of names, dtypes, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def next_version(present: int, version: int | None, reset: bool = False) -> int:
    """Returns the version after an update; any, with `reset`.

    Raises:
        ConfigError: it is not above the current one, so outputs of the two could not be told apart.
    """
    if version is not None and version <= present and not reset:
        raise ConfigError("version", version, f"must be above the current version, {present}")
    return present + 1 if version is None else version


class Staged(dict[str, Tensor]):
    """Tensors that `install_weights` copies.

    Attributes:
        base: adapted weights without adapters, see `low_rank.keep_base`; None for an update of whole weights.
    """

    base: dict[str, Tensor] | None = None


def check_update(model: CausalLM, state: Mapping[str, Tensor], what: str, wanted: str | None = None) -> None:
    """Checks what can be checked of an update without preparing it.

    Raises:
        CheckpointError: names or shapes do not match, or the checksum differs.
    """
    if not is_low_rank(state):
        check_state(model, state, what)
    elif given := without_adapters(state):
        check_state(model, given, what)
    if wanted is not None and (found := checksum(state)) != wanted:
        raise CheckpointError(f"{what}: the checksum of the tensors is {found}, not {wanted}")


def stage_weights(model: CausalLM, state: Mapping[str, Tensor], what: str, wanted: str | None = None) -> Staged:
    """Validates a state dict and prepares it for copying; the model is not modified.

    Args:
        model: its parameters keep their dtype, device and memory; for quantised models the state is quantised likewise.
        state: tensors by name; a tied head may be absent. Or adapters, see `low_rank`.
        what: name of the update, for errors.
        wanted: expected `checksum` of the state; None skips the comparison.

    Returns:
        The tensors in the model's dtypes and on its devices (those of `state` itself where these are the same), in
        quantised form for a quantised model.

    Raises:
        CheckpointError: names, shapes or dtype kinds do not match, the checksum differs, or a value is not finite in
            the model's dtype.
    """
    check_update(model, state, what, wanted)
    present, staged = tensors_of(model), Staged()
    if is_low_rank(state):
        state, staged.base = merge_update(model, state, what)
    quantised = quantised_state(model)
    forms = {} if quantised is None else quantised.forms
    for name, tensor in state.items():
        own = present["model.embed_tokens.weight" if name in forms else name]  # quantised from this dtype
        if tensor.is_floating_point() != own.is_floating_point():
            raise CheckpointError(f"{what}: {name} is {tensor.dtype}, the model's is {own.dtype}")
        # convert before the first copy: memory may run out here, and a copy between equal dtypes cannot fail
        staged[name] = tensor.to(own.device, own.dtype)
        if own.is_floating_point() and not bool(staged[name].isfinite().all()):
            raise CheckpointError(f"{what}: {name} is not finite in {own.dtype}")
    return staged if quantised is None else Staged(quantised.of(staged))


@torch.no_grad()
def install_weights(model: CausalLM, staged: Mapping[str, Tensor]) -> None:
    """Copies the result of `stage_weights` into the model, in place."""
    keep_base(model, getattr(staged, "base", None))
    present = tensors_of(model)
    for name, tensor in staged.items():
        present[name].copy_(tensor)


def replace_weights(model: CausalLM, state: Mapping[str, Tensor], what: str, wanted: str | None = None) -> None:
    """Runs `stage_weights`, then `install_weights`: all weights or none."""
    install_weights(model, stage_weights(model, state, what, wanted))
