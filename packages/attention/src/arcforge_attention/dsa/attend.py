"""Attention over selected keys, in absorbed form: every head reads the same gathered ``[latent | rope]`` entries.

Shapes: T the group's tokens, S visible keys, H heads, K selected keys, V value size, C latent and rope part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from arcforge_core.contracts.batch import Group

if TYPE_CHECKING:
    from arcforge_attention.dsa import DSA


def attend(layer: DSA, q_THK: Tensor, kv_SC: Tensor, indices_TK: Tensor, group: Group) -> Tensor:
    """Returns [T, H, V]."""
    latents_THC = layer.sparse_mla(
        layer.absorb(q_THK), kv_SC, indices_TK, group.cu_query, group.cu_key, layer.latent, layer.scale
    )
    return layer.up_project(latents_THC)
