"""Weights of a serving model in the layouts of its chip's kernels; see `contracts.hardware.PreparesWeights`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from arcforge_core.contracts.hardware import PreparesWeights, Weight
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.binding import declared_weights
from arcforge_core.ops.prepared import PreparedWeight


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns parameters and buffers themselves by name, tied ones under each of theirs, and restores nothing."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


@torch.no_grad()
def prepare_weights(model: CausalLM) -> list[str]:
    """Turns weights into the layouts of the kernels that are bound to them, in place, and returns their names.

    State dicts, checkpoints and updates see ordinary tensors as before. The model can no longer be trained; a change of
    device or dtype restores the weights. Weights that several modules share, and a model in training, stay as they are.
    """
    backend: object = model.ops.hardware
    if not isinstance(backend, PreparesWeights) or model.training:
        return []
    uses, found = Counter(map(id, tensors_of(model).values())), []
    for module, owner, key, weight in _candidates(model):
        value = owner[key]
        if isinstance(value, PreparedWeight) or uses[id(value)] > 1:
            continue
        prepared = backend.prepare_weight(weight, value.detach().contiguous())
        if prepared is None:
            continue
        made = PreparedWeight(weight, backend, prepared, value.device)
        owner[key] = nn.Parameter(made, requires_grad=False) if owner is module._parameters else made
        if _restore_in_state not in module._state_dict_hooks.values():
            module._register_state_dict_hook(_restore_in_state)
        found.append(weight.name)
    return found


def _candidates(model: CausalLM) -> Iterator[tuple[nn.Module, dict[str, Any], str, Weight]]:
    """Yields the weights for which a kernel with a layout is bound: module, its parameters or buffers, name there."""
    for path, module in model.named_modules():
        for op, function, weights in declared_weights(module):
            layouts = getattr(function, "layouts", {})
            for argument, below in weights.items():
                if argument in layouts:
                    part, _, key = below.rpartition(".")
                    holder = module.get_submodule(part)
                    owner: Any = holder._parameters if key in holder._parameters else holder._buffers
                    value, name = owner[key], f"{path}.{below}" if path else below
                    where = layouts[argument], op, argument
                    yield holder, owner, key, Weight(name, *where, tuple(value.shape), value.dtype)


def _restore_in_state(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Puts ordinary tensors into a state dict, except into one of the variables themselves (``keep_vars``)."""
    for owner in (module._parameters, module._buffers):
        for key, own in owner.items():
            found = state.get(prefix + key)
            if isinstance(found, PreparedWeight) and found is not own:
                state[prefix + key] = found.restored()
