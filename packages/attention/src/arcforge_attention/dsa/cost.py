"""Compares the operations of the two forms of attention over selected keys.

Absorbed: every head reads the same gathered ``[latent | rope]`` entries, ``2 C + R`` products for each selected key.
Expanded: computes keys and values of every head and all scores, and masks unselected keys, ``K + V`` products for each
visible key. With GLM-5's sizes the expanded form is cheaper for prompts of up to about 7,500 tokens.
"""

from __future__ import annotations

from itertools import pairwise

from arcforge_core.contracts.batch import Group


def expanded_is_cheaper(group: Group, topk: int, *, latent: int, nope: int, rotary: int, value: int) -> bool:
    """Returns whether the expanded form needs fewer operations for the group's tokens.

    Args:
        group: the segments.
        topk: maximum number of keys that a query selects.
        latent, nope, rotary, value: sizes of the latent, and of a head's parts.
    """
    visible = selected = 0
    for (start, end), keys in zip(pairwise(group.cu_query.tolist()), group.key_lengths, strict=True):
        queries, past = end - start, keys - (end - start)
        dense = min(max(topk - past, 0), queries)  # queries with at most topk visible keys
        visible += queries * past + queries * (queries + 1) // 2
        selected += dense * past + dense * (dense + 1) // 2 + (queries - dense) * topk
    projection = latent * (nope + value)  # per key if expanded; per query, both ways, if absorbed
    keys = sum(group.key_lengths) if group.key_runs is None else int(group.cu_query[-1])  # each is expanded once
    expanded = visible * (nope + rotary + value) + keys * projection
    absorbed = selected * (2 * latent + rotary) + int(group.cu_query[-1]) * projection
    return expanded < absorbed
