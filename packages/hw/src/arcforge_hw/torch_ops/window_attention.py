"""Sliding-window attention over ragged segments: blocks of queries, each with the band of keys visible to it.

All blocks of a batch have one shape, so a layer is two batched products for any number of segments; time and memory
grow with tokens times window.

Shapes: T query tokens, S keys, H heads, G key/value heads, R = H / G, K key size, V value size, W window, N blocks,
B queries of a block, J = B + W - 1 keys of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

BLOCK = 128
"""Maximum queries per block. The next block reads a block's keys again, so narrow windows use smaller blocks."""
LEAST = 16


@dataclass(frozen=True)
class Blocks:
    """The blocks of a batch, as indices.

    Attributes:
        rows_NB: row of each query; rows past a segment's end repeat row 0.
        keys_NJ: row of each key; those outside the segment repeat row 0.
        hidden_NBJ: keys that a query does not see.
        place_T: position of each query in the blocks.
    """

    rows_NB: Tensor
    keys_NJ: Tensor
    hidden_NBJ: Tensor
    place_T: Tensor


def lay_blocks(cu_query: Tensor, cu_key: Tensor, window: int, device: torch.device) -> Blocks:
    """Splits the segments into blocks of queries; reads the lengths on the host, returns tensors on `device`."""
    ends_q, ends_k = cu_query.tolist(), cu_key.tolist()
    longest = max(end - start for start, end in pairwise(ends_q))
    block = min(longest, max(LEAST, min(window, BLOCK)))
    firsts = []  # first query, end of the queries, first key of the segment, end of the keys
    for (q0, q1), (k0, k1) in zip(pairwise(ends_q), pairwise(ends_k), strict=True):
        firsts += [(start, q1, k0, k1) for start in range(q0, q1, block)]
    start_N1, stop_N1, key_N1, end_N1 = torch.tensor(firsts).mT[..., None]
    rows_NB = start_N1 + torch.arange(block)
    inside_NB = rows_NB < stop_N1
    own_N1 = end_N1 - (stop_N1 - start_N1)  # the key of a block's first query
    keys_NJ = own_N1 - window + 1 + torch.arange(block + window - 1)
    there_NJ = (keys_NJ >= key_N1) & (keys_NJ < end_N1)
    # the band: query i of a block sees its keys i .. i + W - 1; a row past the end sees all keys, to avoid NaN
    band_BJ = torch.ones(block, block + window - 1, dtype=torch.bool).triu().tril(window - 1)
    hidden_NBJ = ~(band_BJ & there_NJ[:, None]) & inside_NB[..., None]
    place_T = inside_NB.flatten().nonzero()[:, 0]
    return Blocks(*(x.to(device) for x in (rows_NB * inside_NB, keys_NJ * there_NJ, hidden_NBJ, place_T)))


def window_attention(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, window: int, scale: float
) -> Tensor:
    """See `arcforge_core.ops.reference.window_attention`."""
    heads, groups = q_THK.shape[1], k_SGK.shape[1]
    blocks = lay_blocks(cu_query, cu_key, min(window, int(cu_key.diff().max())), q_THK.device)
    count, block = blocks.rows_NB.shape

    def key_blocks(x_SGE: Tensor) -> Tensor:
        """Returns [N, G, J, E]."""
        rows = x_SGE.index_select(0, blocks.keys_NJ.flatten())
        return rows.view(count, -1, *x_SGE.shape[1:]).transpose(1, 2)

    q_NBGRK = q_THK.index_select(0, blocks.rows_NB.flatten()).view(count, block, groups, heads // groups, -1)
    q_NGXK = q_NBGRK.permute(0, 2, 3, 1, 4).flatten(2, 3)
    scores_NGRBJ = (q_NGXK @ key_blocks(k_SGK).mT * scale).unflatten(2, (-1, block))
    wide = torch.promote_types(q_THK.dtype, torch.float32)
    probs = scores_NGRBJ.masked_fill(blocks.hidden_NBJ[:, None, None], float("-inf")).softmax(-1, dtype=wide)
    out_NGXV = probs.to(v_SGV.dtype).flatten(2, 3) @ key_blocks(v_SGV)
    out_NBHV = out_NGXV.unflatten(2, (-1, block)).permute(0, 3, 1, 2, 4).flatten(2, 3)
    out_THV: Tensor = out_NBHV.flatten(0, 1).index_select(0, blocks.place_T)
    return out_THV
