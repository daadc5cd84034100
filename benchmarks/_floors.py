"""The floor of a step: products and bytes that no step does without, and their seconds at measured rates."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.params import count_parameters


@dataclass(frozen=True)
class Work:
    """Products and bytes that a step cannot do without."""

    flops: float
    bytes: float

    def seconds(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Returns the floor."""
        return max(self.flops / flops_per_s, self.bytes / bytes_per_s)


def work(model: CausalLM, tokens: int, past: int, heads: int = 1, dense: bool = False) -> Work:
    """Counts a forward pass over `tokens` new tokens of one sequence after `past` others.

    Attention is counted in absorbed form over at most top-k keys, or over all where `dense` says so; index scores over
    all keys. `heads` tokens get logits.
    """
    c = model.config
    active = count_parameters(c, model.attention).active  # without embedding and head
    seen_T = torch.arange(past + 1, past + tokens + 1, dtype=torch.float64)
    read_T = seen_T if dense else seen_T.clamp(max=c.index_topk)
    entry = c.kv_lora_rank + c.qk_rope_head_dim
    pair = 2 * c.num_attention_heads * (entry + c.kv_lora_rank)
    scored = 0.0 if dense else float(torch.where(seen_T > c.index_topk, seen_T, 0.0).sum())
    flops = 2.0 * active * tokens + 2.0 * heads * c.hidden_size * c.vocab_size
    flops += c.num_hidden_layers * (pair * float(read_T.sum()) + 2 * c.index_n_heads * c.index_head_dim * scored)
    kept = float(read_T[-1]) * entry + (0.0 if dense else float(seen_T[-1]) * c.index_head_dim)
    weights = active if tokens < c.n_routed_experts else count_parameters(c, model.attention).total_without_mtp
    values = weights + c.hidden_size * c.vocab_size + c.num_hidden_layers * kept
    return Work(flops, 4.0 * values)
