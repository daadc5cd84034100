"""Generated model sizes, and batches for them. Shapes: T tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from hypothesis import strategies as st

from arcforge_core.config.schema import ModelConfig, MtpConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.testing.small_models import small_config


def segment_lengths(max_segments: int = 5, max_length: int = 7) -> st.SearchStrategy[list[int]]:
    """Lengths of a batch's segments, one token included."""
    return st.lists(st.integers(1, max_length), min_size=1, max_size=max_segments)


@st.composite
def model_configs(draw: st.DrawFn) -> ModelConfig:
    """Sizes that are small and odd: heads, ranks, experts and layers that divide nothing, tied or not."""
    experts = draw(st.integers(1, 7))
    layers = draw(st.integers(1, 3))
    kv_heads = draw(st.integers(1, 3))
    return small_config(
        vocab_size=draw(st.integers(5, 40)),
        hidden_size=draw(st.integers(3, 20)),
        num_hidden_layers=layers,
        first_k_dense_replace=draw(st.integers(0, layers)),
        intermediate_size=draw(st.integers(1, 20)),
        moe_intermediate_size=draw(st.integers(1, 9)),
        n_routed_experts=experts,
        num_experts_per_tok=draw(st.integers(1, experts)),
        n_shared_experts=draw(st.integers(0, 2)),
        routed_scaling_factor=draw(st.sampled_from([1.0, 1.8, 2.5])),
        num_attention_heads=kv_heads * draw(st.integers(1, 3)),
        num_key_value_heads=kv_heads,
        head_dim=2 * draw(st.integers(2, 6)),
        q_lora_rank=draw(st.integers(1, 12)),
        kv_lora_rank=draw(st.integers(1, 12)),
        qk_nope_head_dim=draw(st.integers(1, 9)),
        qk_rope_head_dim=2 * draw(st.integers(1, 2)),
        v_head_dim=draw(st.integers(1, 9)),
        tie_word_embeddings=draw(st.booleans()),
        mtp=MtpConfig(depths=draw(st.integers(0, 3)), fraction=1.0),
    )


def train_batch(
    lengths: Sequence[int], vocab_size: int, seed: int = 0, *, unweighted: Sequence[int] = ()
) -> TrainBatch:
    """Returns random tokens in segments of these lengths, each a document with one more token as its last target.

    Args:
        lengths: tokens of each segment.
        vocab_size: ids are below it.
        seed: decides the tokens.
        unweighted: rows whose loss weight is 0.
    """
    generator = torch.Generator().manual_seed(seed)
    documents = [torch.randint(vocab_size, (n + 1,), generator=generator) for n in lengths]
    weights_T = torch.ones(sum(lengths))
    weights_T[list(unweighted)] = 0.0
    return TrainBatch(
        tokens_T=torch.cat([d[:-1] for d in documents]),
        targets_T=torch.cat([d[1:] for d in documents]),
        weights_T=weights_T,
        batch=SequenceBatch.build(lengths),
        cursor=1,
        num_bytes=sum(lengths),
    )


def split(batch: TrainBatch, cuts: Sequence[int]) -> list[TrainBatch]:
    """Cuts a batch into micro-batches before the segments with these numbers."""
    lengths = batch.batch.query_lengths()
    borders = [0, *sorted({c for c in cuts if 0 < c < len(lengths)}), len(lengths)]
    parts: list[TrainBatch] = []
    for first, last in pairwise(borders):
        rows = slice(sum(lengths[:first]), sum(lengths[:last]))
        parts.append(
            TrainBatch(
                batch.tokens_T[rows],
                batch.targets_T[rows],
                batch.weights_T[rows],
                SequenceBatch.build(lengths[first:last]),
                len(parts) + 1,
                batch.num_bytes,
            )
        )
    return parts
