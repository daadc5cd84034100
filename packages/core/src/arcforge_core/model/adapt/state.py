"""The ordinary state dict of a model, with adapters merged, and checks of other state dicts against it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from arcforge_core.errors import CheckpointError
from arcforge_core.model.adapt.lora import adapter_of, merged_state
from arcforge_core.model.adapt.quantised import quantised_state
from arcforge_core.model.causal_lm import CausalLM


def state_of(model: CausalLM) -> dict[str, Tensor]:
    """Returns the state dict with a tied head stored once, under the embedding's name, and adapters merged.

    Raises:
        CheckpointError: the model's weights are quantised, so the original values are gone.
    """
    if (quantised := quantised_state(model)) is not None:
        raise CheckpointError(f"a model with weights in {quantised.mode} cannot be saved: save the original model")
    found = model.state_dict() if adapter_of(model) is None else merged_state(model)
    state = {name: tensor.contiguous() for name, tensor in found.items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def check_state(model: CausalLM, state: Mapping[str, Tensor], where: str) -> None:
    """Raises `CheckpointError` that names missing, unknown and mis-shaped tensors; `where` names the source."""
    if adapter_of(model) is not None:
        raise CheckpointError(f"{where}: the model has adapters: update the weights of a model without them")
    check_shapes(ordinary_shapes(model), {name: tensor.shape for name, tensor in state.items()}, where)


def ordinary_shapes(model: CausalLM) -> dict[str, torch.Size]:
    """Returns the shapes of a state dict that updates the model, quantised or not."""
    if (quantised := quantised_state(model)) is not None:
        return dict(quantised.shapes)
    if adapter_of(model) is not None:
        return {name: tensor.shape for name, tensor in state_of(model).items()}
    shapes = {name: tensor.shape for name, tensor in model.state_dict(keep_vars=True).items()}
    if model.config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    return shapes


def check_shapes(wanted: Mapping[str, torch.Size], found: Mapping[str, torch.Size], where: str) -> None:
    """As `check_state`, from shapes only."""
    faults = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    faults += [f"{name} is not part of the model" for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        if found[name] != wanted[name]:
            faults.append(f"{name} is {list(found[name])}, the model's is {list(wanted[name])}")
    if faults:
        rest = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise CheckpointError(f"{where} does not fit the model: {'; '.join(sorted(faults)[:8])}{rest}")
