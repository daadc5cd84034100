"""Models of some ten thousand parameters for tests, with weights large enough that their choices are decided."""

from __future__ import annotations

import torch

from arcforge_core.config.schema import ModelConfig, MtpConfig
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.data.tokenizer import Tokenizer, train_tokenizer
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops

TOKENIZER_SIZE = 280


def small_config(**changes: object) -> ModelConfig:
    """Returns the sizes, with `changes`."""
    sizes = {
        "name": "small_test",
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 4,
        "v_head_dim": 16,
        "index_n_heads": 2,
        "index_head_dim": 8,
        "index_topk": 8,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "mtp": MtpConfig(depths=1),
    }
    return ModelConfig(**{**sizes, **changes})  # type: ignore[arg-type]


def small_model(seed: int = 0, **changes: object) -> CausalLM:
    """Returns a float32 model in eval mode with naive attention and the reference ops; the seed decides its weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_model(small_config(**changes), ReferenceAttentionConfig(), Ops(None)).eval()


def small_tokenizer() -> Tokenizer:
    """Returns a byte-level tokenizer of `TOKENIZER_SIZE` entries: bytes, special tokens and four merges."""
    return train_tokenizer(["one two three 1 2 3"] * 4, TOKENIZER_SIZE)
