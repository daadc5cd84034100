"""Which keys a query attends to. Shapes: T the group's tokens, S visible keys, I index head size, K top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from arcforge_attention.entries import Entries
from arcforge_core.contracts.attention import Rope
from arcforge_core.contracts.batch import Group

if TYPE_CHECKING:
    from arcforge_attention.dsa import DSA

Selection = tuple[Tensor | None, ...]
"""For each group of a plan the selected keys [T, K] of its tokens; None where they attend to all keys."""


def needs_selection(group: Group, topk: int) -> bool:
    """Says whether some segment of the group has more keys than a query may attend to."""
    return int((group.cu_key[1:] - group.cu_key[:-1]).max()) > topk


def select_groups(layer: DSA, x_TD: Tensor, q_TQ: Tensor, entries: Entries, rope: Rope) -> Selection:
    """Returns the selection of a batch; arguments as in `select`."""
    return tuple(
        select(layer, x_TD, q_TQ, entries.read("index_key", group), group, rope)
        if needs_selection(group, layer.topk)
        else None
        for group in entries.batch.plan.groups()
    )


def select(layer: DSA, x_TD: Tensor, q_TQ: Tensor, index_key_SI: Tensor, group: Group, rope: Rope) -> Tensor:
    """Returns the selected keys [T, K] of the group's tokens, numbered in their segment, ascending, -1 for none.

    `x_TD`, `q_TQ` and `rope` are those of the whole batch.
    """
    assert layer.indexer is not None  # a shared layer selects nothing
    cos_TF, sin_TF = (group.take(table) for table in rope)
    queries_TIK = layer.indexer.queries(group.take(q_TQ), (cos_TF, sin_TF))
    weights_TI = layer.indexer.weights(group.take(x_TD))
    indices_TK: Tensor = layer.indexer_topk(
        queries_TIK, index_key_SI, weights_TI, group.cu_query, group.cu_key, layer.topk, layer.use_relu
    )
    return indices_TK
