"""Models of about ten thousand parameters for tests, with weights large enough for clear argmaxes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from arcforge_core.config.schema import ModelConfig, MtpConfig
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.tokenizer.tokenizer import Tokenizer, train_tokenizer

TOKENIZER_SIZE = 280
RING = 16
"""Vocabulary of `ring_model`."""


def small_config(**changes: object) -> ModelConfig:
    """Returns small sizes, updated by `changes`."""
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


def after_in_ring(token: int) -> int:
    """Returns the token that `ring_model` predicts after a token, regardless of context: all tokens are in one ring."""
    return (5 * token + 3) % RING


def ring_model(
    of_ahead: Callable[[int], int] | None = None, of_hidden: Callable[[int], int] | None = None, sharpness: float = 1.0
) -> CausalLM:
    """Returns a hand-made model whose layers add nothing and whose hidden states encode single tokens.

    Args:
        of_ahead, of_hidden: the MTP module's hidden state is ``of_ahead(the embedded token)`` or ``of_hidden(the token
            of the hidden state before)``.
        sharpness: factor on the logits.
    """
    sizes = small_config(vocab_size=RING, hidden_size=RING, num_hidden_layers=1)
    model = build_model(sizes, ReferenceAttentionConfig(), Ops(None)).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.constant_(parameter, float(parameter.ndim == 1 and "norm" in name))
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(RING))
        for token in range(RING):
            model.lm_head.weight[after_in_ring(token), token] = sharpness
            if of_ahead is not None and model.mtp is not None:
                model.mtp.eh_proj.weight[of_ahead(token), token] = 1.0
            if of_hidden is not None and model.mtp is not None:
                model.mtp.eh_proj.weight[of_hidden(token), RING + token] = 1.0
    return model
