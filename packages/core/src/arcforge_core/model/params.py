"""Counts a model's parameters, active parameters, cache bytes and training FLOPs, on the meta device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import Attention
from arcforge_core.model.block import Block
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.meta import meta_device
from arcforge_core.ops.dispatch import Ops


@dataclass(frozen=True)
class ParameterCounts:
    """Counts of a preset.

    Attributes:
        total_with_mtp: values in the state dict, buffers of the router included.
        total_without_mtp: the same without the MTP module.
        active: values that one token uses, without embedding and head: the decoder layers and the final norm (indexer,
        norms and router bias included) without the experts it is not routed to.
        cache_bytes_per_token: bf16 bytes that all decoder layers cache per token of a sequence of full length.
    """

    total_with_mtp: int
    total_without_mtp: int
    active: int
    cache_bytes_per_token: int


def count_parameters(config: ModelConfig, attention: AttentionConfig) -> ParameterCounts:
    """Builds the model on the meta device and counts."""
    with meta_device():
        model = build_model(config, attention, Ops(None))
    state = model.state_dict()
    names = set(state) - ({"lm_head.weight"} if config.tie_word_embeddings else set())
    backbone = [n for n in names if not n.startswith("mtp.")]
    active = 0
    for name in backbone:
        if name not in ("lm_head.weight", "model.embed_tokens.weight"):
            count = state[name].numel()
            active += count * config.num_experts_per_tok // config.n_routed_experts if ".experts." in name else count
    return ParameterCounts(
        total_with_mtp=sum(state[n].numel() for n in names),
        total_without_mtp=sum(state[n].numel() for n in backbone),
        active=active,
        cache_bytes_per_token=cache_bytes(model, config.max_position_embeddings) // config.max_position_embeddings,
    )


def cache_bytes(model: CausalLM, tokens: int, dtype: torch.dtype = torch.bfloat16) -> int:
    """Returns the bytes that all decoder layers cache for one sequence of this many tokens."""
    return sum(entry.num_bytes(dtype, tokens) for layer in model.cache_spec() for entry in layer)


@dataclass(frozen=True)
class FlopsPerToken:
    """Training FLOPs of one token, backward included: ``6 x active matmul parameters + attention``, 4 x frozen ones.

    Attributes:
        main: the main model with head.
        mtp_depth: one MTP depth with its head.
    """

    main: float
    mtp_depth: float


def training_flops_per_token(model: CausalLM, keys: float | Tensor) -> FlopsPerToken:
    """Counts matrix products only, not embedding look-ups.

    Args:
        model: any dtype and device.
        keys: visible keys of each query [T], or their mean if every layer attends to all of them.
    """
    config = model.config
    share = config.num_experts_per_tok / config.n_routed_experts

    def flops(parameter: Tensor) -> float:
        """One product forward, one for the input's gradient, and one for the weight's unless it is frozen."""
        return (6.0 if parameter.requires_grad else 4.0) * parameter.numel()

    def matmul(prefix: str) -> float:
        total = 0.0
        for name, parameter in model.named_parameters():
            # the loss has no gradient to an indexer, which the layer counts with its selection (spec 1.4)
            if name.startswith(prefix) and parameter.ndim >= 2 and ".indexer." not in name:
                total += flops(parameter) * (share if ".experts." in name else 1.0)
        return total

    keys = keys.cpu() if isinstance(keys, Tensor) else keys  # most accelerators have no float64
    keys_T = torch.as_tensor(keys, dtype=torch.float64).flatten()

    def attention(layer: Attention) -> float:
        return float(layer.training_flops(keys_T).mean())

    head = flops(model.lm_head.weight)
    main = matmul("model.layers.") + head
    for layer in model.model.layers:
        main += attention(cast(Block, layer).self_attn)
    depth = 0.0
    if model.mtp is not None:
        depth = matmul("mtp.") + head + attention(model.mtp.self_attn)
    return FlopsPerToken(main, depth)
