"""Naive references of all ops: differentiable, for any dtype and device. They define the ops.

Ragged tokens are concatenated segments; ``cu_query`` and ``cu_key`` are int32 cumulative lengths on the host.
Causal is bottom-right: query j of a segment of q queries and s keys sees its first ``s - q + j + 1`` keys.
"""

from __future__ import annotations

from arcforge_core.ops.quant import to_records
from arcforge_core.ops.reference.argmax_logprob import argmax_logprob
from arcforge_core.ops.reference.attention_decode import attention_decode
from arcforge_core.ops.reference.attention_varlen import attention_varlen
from arcforge_core.ops.reference.gated_delta_rule import gated_delta_rule
from arcforge_core.ops.reference.hadamard import hadamard, hadamard_matrix
from arcforge_core.ops.reference.head_linear import head_linear
from arcforge_core.ops.reference.index_prolog import index_prolog
from arcforge_core.ops.reference.indexer_kl import indexer_kl, indexer_kl_of_rows, kl, mean_softmax
from arcforge_core.ops.reference.indexer_topk import index_scores, indexer_topk, top_keys
from arcforge_core.ops.reference.linear import linear
from arcforge_core.ops.reference.linear_cross_entropy import linear_cross_entropy
from arcforge_core.ops.reference.mla_absorb import mla_absorb
from arcforge_core.ops.reference.mla_decode import mla_decode
from arcforge_core.ops.reference.mla_epilog import mla_epilog
from arcforge_core.ops.reference.mla_layer import mla_layer
from arcforge_core.ops.reference.mla_project import mla_project
from arcforge_core.ops.reference.mla_prolog import mla_prolog
from arcforge_core.ops.reference.mlp import mlp
from arcforge_core.ops.reference.moe import moe
from arcforge_core.ops.reference.moe_experts import moe_experts
from arcforge_core.ops.reference.newton_schulz import newton_schulz
from arcforge_core.ops.reference.quant_experts import quant_experts
from arcforge_core.ops.reference.quant_linear import check_one_scale, quant_linear
from arcforge_core.ops.reference.quant_mlp import quant_mlp
from arcforge_core.ops.reference.quant_moe import quant_moe
from arcforge_core.ops.reference.ragged import causal_mask, laid_out, segments, selected_mask, wide_softmax, window_mask
from arcforge_core.ops.reference.rms_norm import rms_norm
from arcforge_core.ops.reference.rope import rope
from arcforge_core.ops.reference.router_scores import route, router_scores
from arcforge_core.ops.reference.sample import noise, sample
from arcforge_core.ops.reference.selected_attention import selected_attention
from arcforge_core.ops.reference.sparse_mla import sparse_mla
from arcforge_core.ops.reference.swiglu import swiglu
from arcforge_core.ops.reference.window_attention import window_attention

__all__ = [
    "argmax_logprob", "attention_decode", "attention_varlen", "causal_mask", "check_one_scale",
    "gated_delta_rule", "hadamard", "hadamard_matrix", "head_linear", "index_prolog", "index_scores", "indexer_kl",
    "indexer_kl_of_rows", "indexer_topk", "kl", "laid_out", "linear", "linear_cross_entropy", "mean_softmax",
    "mla_absorb", "mla_decode", "mla_epilog", "mla_layer", "mla_project", "mla_prolog", "mlp", "moe", "moe_experts",
    "newton_schulz", "noise", "quant_experts", "quant_linear", "quant_mlp", "quant_moe", "rms_norm", "rope", "route",
    "router_scores", "sample", "segments", "selected_attention", "selected_mask", "sparse_mla", "swiglu", "to_records",
    "top_keys", "wide_softmax", "window_attention", "window_mask",
]  # fmt: skip
