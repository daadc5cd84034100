"""The names of all ops, without torch; `ops.reference` has their definitions."""

from __future__ import annotations

OP_NAMES = (
    "rms_norm", "rope", "linear", "head_linear", "swiglu", "attention_varlen", "window_attention", "attention_decode",
    "mla_decode", "indexer_topk", "sparse_mla", "selected_attention", "indexer_kl", "gated_delta_rule",
    "router_scores", "moe_experts", "linear_cross_entropy", "argmax_logprob", "sample", "newton_schulz", "hadamard",
    "to_records", "quant_linear", "quant_experts", "mla_prolog", "mla_project", "mla_absorb", "mla_epilog",
    "mla_layer", "index_prolog", "mlp", "quant_mlp", "moe", "quant_moe",
)  # fmt: skip
