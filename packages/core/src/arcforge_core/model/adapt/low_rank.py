"""Weight updates of adapters alone: A and B of each adapted weight, which the receiver merges into its frozen base.

A state with them has for an adapted weight ``NAME`` the tensors ``NAME.lora_A`` [..., R, D] and ``NAME.lora_B``
[..., N, R] (times the adapter's scale), and ``lora_base``, the digest of the base's adapted weights: a receiver with
another base refuses it. With all other tensors of a state dict, it brings the base along.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from arcforge_core.errors import CheckpointError
from arcforge_core.model.adapt.lora import merged, named_adapters
from arcforge_core.model.adapt.prepared import tensors_of
from arcforge_core.model.adapt.quantised import quantised_state
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.prepared import ordinary

A, B, BASE = ".lora_A", ".lora_B", "lora_base"
_BASE = "low_rank_base"
"""The attribute of a model whose weights have adapters merged: its adapted weights without them."""


def is_low_rank(names: Iterable[str]) -> bool:
    """Whether a state of these names has adapters."""
    return BASE in names


def low_rank_state(model: CausalLM, with_base: bool = False) -> dict[str, Tensor]:
    """Returns the adapters of a model as a state.

    Args:
        model: has adapters.
        with_base: whether the frozen weights are part of it.
    """
    adapters = dict(named_adapters(model))
    state: dict[str, Tensor] = {}
    for name, low in adapters.items():
        state |= {name + A: low.A.detach(), name + B: (low.B * low.scale).detach()}
    own = model.state_dict()
    state[BASE] = digest_of({name: own[name] for name in adapters})
    if with_base:
        inner = {id(parameter) for low in adapters.values() for parameter in low.parameters()}
        for name, value in model.state_dict(keep_vars=True).items():
            tied = name == "lm_head.weight" and model.config.tie_word_embeddings
            if id(value) not in inner and not tied:
                state[name] = value.detach().contiguous()
    return state


def digest_of(weights: Mapping[str, Tensor]) -> Tensor:
    """Returns the SHA-256 of weights rounded to bfloat16, uint8 [32]: their dtype in memory does not matter."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        rounded = weights[name].detach().to("cpu", torch.bfloat16).contiguous()
        digest.update(rounded.flatten().view(torch.uint8).numpy().data)
    return torch.from_numpy(np.frombuffer(digest.digest(), np.uint8).copy())


def without_adapters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of the base that a state brings along."""
    return {name: value for name, value in state.items() if name != BASE and not name.endswith((A, B))}


@torch.no_grad()
def merge_update(
    model: CausalLM, state: Mapping[str, Tensor], what: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the merged weights of an update, and the adapted weights without adapters, which `keep_base` takes.

    Both are in the model's dtypes, on its devices. The model is not modified.

    Raises:
        CheckpointError: the adapters do not fit the model, or are of another base; or its weights are quantised.
    """
    if quantised_state(model) is not None:
        raise CheckpointError(f"{what}: adapters need the engine's original weights, and these are quantised")
    present, given, kept = tensors_of(model), without_adapters(state), vars(model).get(_BASE) or {}
    names = sorted(name.removesuffix(A) for name in state if name.endswith(A))
    if names != sorted(name.removesuffix(B) for name in state if name.endswith(B)):
        raise CheckpointError(f"{what}: a tensor {A} has no {B}, or the other way round")
    base: dict[str, Tensor] = {}
    for name in names:
        a, b = state[name + A], state[name + B]
        own = present.get(name)
        if own is None:
            raise CheckpointError(f"{what}: {name} is adapted, and is not part of the model")
        if (*b.shape[:-1], a.shape[-1]) != tuple(own.shape) or a.shape[-2] != b.shape[-1]:
            raise CheckpointError(f"{what}: {name} is {list(b.shape)} x {list(a.shape)}, the model's {list(own.shape)}")
        base[name] = given[name].to(own.device, own.dtype) if given else kept.get(name, ordinary(own))
    if not torch.equal(state[BASE].cpu(), digest_of(base)):
        raise CheckpointError(f"{what}: the adapters are of another base than the engine's weights")
    old = {} if given else kept
    found = {**old, **given}  # a weight that this update does not adapt is the base's again
    for name, weight in base.items():
        a, b = (state[name + part].to(weight.device) for part in (A, B))
        found[name] = merged(weight, a, b, 1.0).to(weight.dtype)
    return found, {**old, **{name: value if old.get(name) is value else value.clone() for name, value in base.items()}}


def keep_base(model: CausalLM, base: Mapping[str, Tensor] | None) -> None:
    """Keeps the adapted weights without adapters, for the next update; None forgets those of earlier ones."""
    vars(model)[_BASE] = base
