"""Attention over selected keys, in the form that takes fewer operations.

Absorbed: every head reads the same gathered ``[latent | rope]`` entries, ``2 C + R`` products for each selected key.
Expanded: keys and values of every head are built, all scores computed and those of other keys dropped, ``K + V`` for
each visible key. With GLM-5's sizes the second is less work for prompts of up to some 7,500 tokens.

Shapes: T the group's tokens, S visible keys, H heads, N selected keys, K key size, V value size, C latent, R rope.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from arcforge_attention import latent_records
from arcforge_attention.entries import Entries
from arcforge_core.contracts.batch import Group

if TYPE_CHECKING:
    from arcforge_attention.dsa import DSA


def attend(layer: DSA, q_THK: Tensor, entries: Entries, indices_TN: Tensor, group: Group) -> Tensor:
    """Returns [T, H, V]."""
    if expands(layer, group):
        k_SHK, v_SHV = layer.expand(layer.latents(entries, group, q_THK.dtype))
        out_THV: Tensor = layer.selected_attention(
            q_THK, k_SHK, v_SHV, indices_TN, group.cu_query, group.cu_key, layer.scale
        )
        return out_THV
    q_THC = layer.absorb(q_THK)
    if group is entries.batch.plan.decode:
        return layer.up_project(attend_few(layer, q_THC, entries, indices_TN, group))
    kv_SC, pages = layer.paged_latents(entries, group, q_THK.dtype)
    lengths = group.cu_query, group.cu_key
    return layer.up_project(layer.sparse_mla(q_THC, kv_SC, indices_TN, *lengths, layer.latent, layer.scale, pages))


def attend_few(layer: DSA, q_THC: Tensor, entries: Entries, indices_TN: Tensor, group: Group) -> Tensor:
    """Returns attended latents [T, H, C] of few tokens behind a cache; of int8 only what they read is made wide.

    Not in deterministic mode: sums are cut by where keys lie among all that are visible.
    """
    rows, pages = entries.paged("latent", group)
    cu_query, cu_key = group.cu_query, group.cu_key
    if rows.dtype == torch.int8:
        if layer.deterministic:
            rows = entries.read("latent", group)
        else:
            rows, indices_TN, cu_query, cu_key = latent_records.gather(rows, pages, indices_TN, group)
        rows, pages = layer.widened(rows, q_THC.dtype), None
    out_THC: Tensor = layer.sparse_mla(q_THC, rows, indices_TN, cu_query, cu_key, layer.latent, layer.scale, pages)
    return out_THC


def expands(layer: DSA, group: Group) -> bool:
    """Says whether the expanded form is wanted, or takes fewer operations."""
    if layer.absorbed or layer.form != "auto":
        return not layer.absorbed
    visible = selected = 0
    for (start, end), keys in zip(pairwise(group.cu_query.tolist()), group.key_lengths, strict=True):
        queries, past = end - start, keys - (end - start)
        dense = min(max(layer.topk - past, 0), queries)  # queries that see no more keys than they may select
        visible += queries * past + queries * (queries + 1) // 2
        selected += dense * past + dense * (dense + 1) // 2 + (queries - dense) * layer.topk
    projection = layer.latent * (layer.nope + layer.value)  # of a key here, into and out of the latent space of a query
    expanded = visible * (layer.nope + layer.rotary + layer.value) + sum(group.key_lengths) * projection
    absorbed = selected * (2 * layer.latent + layer.rotary) + int(group.cu_query[-1]) * projection
    return expanded < absorbed
