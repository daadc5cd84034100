"""Generated models of the architectures of transformers, odd in every size that an architecture leaves open."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import nn

from arcforge_core.config.schema import AttentionConfig, ModelConfig, MtpConfig, RopeScalingConfig
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import small_config

TOP_K = 5
"""`index_topk` of the generated models with an indexer."""


@st.composite
def hf_configs(draw: st.DrawFn, architecture: str) -> tuple[ModelConfig, AttentionConfig]:
    """Sizes and attention that `architecture` can hold."""
    layers, rotary = draw(st.integers(1, 4)), 2 * draw(st.integers(1, 4))
    groups, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    experts_per_group = draw(st.integers(2, 4))
    n_group = draw(st.integers(1, 3)) if architecture != "llama" else 1
    topk_group = draw(st.integers(1, n_group))
    dense = layers if architecture == "llama" else draw(st.integers(0, layers))
    head_dim = rotary if architecture == "llama" else rotary + draw(st.integers(0, 5))
    attention: dict[str, object] = {}
    if architecture == "glm4_moe":
        attention = {"qk_norm": draw(st.booleans()), "bias": draw(st.booleans())}
    if architecture == "glm_moe_dsa":
        kinds = draw(st.lists(st.sampled_from(["full", "shared"]), min_size=layers, max_size=layers))
        attention = {"indexer_types": ["full", *kinds[1:]] if "shared" in kinds[1:] else []}
    config = small_config(
        vocab_size=draw(st.integers(5, 40)),
        hidden_size=groups * heads * draw(st.integers(2, 5)),  # llama wants a multiple of the heads
        num_hidden_layers=layers,
        first_k_dense_replace=dense,
        intermediate_size=draw(st.integers(1, 20)),
        moe_intermediate_size=draw(st.integers(1, 9)),
        n_routed_experts=n_group * experts_per_group,
        num_experts_per_tok=draw(st.integers(1, topk_group * experts_per_group)),
        n_shared_experts=draw(st.integers(1, 2)),
        routed_scaling_factor=draw(st.sampled_from([1.0, 1.8, 2.5])),
        n_group=n_group,
        topk_group=topk_group,
        num_attention_heads=groups * heads,
        num_key_value_heads=groups,
        head_dim=head_dim,
        q_lora_rank=draw(st.integers(1, 12)),
        kv_lora_rank=draw(st.integers(1, 12)),
        qk_nope_head_dim=draw(st.integers(1, 9)),
        qk_rope_head_dim=rotary,
        v_head_dim=draw(st.integers(1, 9)),
        index_n_heads=draw(st.integers(32, 40)),  # fewer leave keys without any positive score: ties, see numerics
        index_head_dim=rotary + draw(st.integers(0, 5)),
        index_topk=TOP_K,
        rope_theta=draw(st.sampled_from([1e4, 1e6])),
        rope_scaling=draw(rope_scalings()),
        rms_norm_eps=draw(st.sampled_from([1e-5, 1e-6])),
        tie_word_embeddings=draw(st.booleans()),
        mtp=MtpConfig(depths=0 if architecture == "llama" else draw(st.integers(0, 3))),
    )
    variant = {"llama": "gqa", "glm4_moe": "gqa", "glm_moe_dsa": "dsa"}.get(architecture, "mla")
    chosen: AttentionConfig = registry().get("attention", variant).load_schema()(**attention)
    return config, chosen


def rope_scalings() -> st.SearchStrategy[RopeScalingConfig]:
    """None, or a stretch that is already felt within a dozen positions."""
    plain = st.just(RopeScalingConfig())
    return plain | st.builds(
        RopeScalingConfig,
        type=st.sampled_from(["llama3", "yarn", "yarn"]),  # twice: it has more fields to get wrong
        factor=st.sampled_from([2.0, 8.0, 40.0]),
        original_max_position_embeddings=st.sampled_from([8, 32, 100]),
        attention_factor=st.none() | st.just(1.25),
        mscale=st.sampled_from([0.0, 0.7, 1.0]),
        mscale_all_dim=st.sampled_from([0.0, 0.7, 1.0]),
    ).map(_without_unused)


def _without_unused(scaling: RopeScalingConfig) -> RopeScalingConfig:
    if scaling.type == "llama3":
        return replace(scaling, attention_factor=None, mscale=0.0, mscale_all_dim=0.0)
    return scaling


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Draws every weight of a model, norms, biases and router biases included."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and "inv_freq" not in name:
            centre = 1.0 if name.endswith("norm.weight") else 0.0
            tensor.copy_(centre + 0.3 * torch.randn(tensor.shape, generator=generator))
