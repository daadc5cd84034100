"""Which keys a query attends to. Shapes: T the group's tokens, S visible keys, I index head size, K top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from arcforge_core.contracts.batch import Group

if TYPE_CHECKING:
    from arcforge_attention.dsa import DSA


def needs_selection(group: Group, topk: int) -> bool:
    """Says whether some segment of the group has more keys than a query may attend to."""
    return int((group.cu_key[1:] - group.cu_key[:-1]).max()) > topk


def select(
    layer: DSA,
    x_TD: Tensor,
    q_TQ: Tensor,
    index_key_SI: Tensor,
    group: Group,
    rope: tuple[Tensor, Tensor],
) -> Tensor:
    """Returns the selected keys [T, K] of the group's tokens, numbered in their segment, ascending, -1 for none.

    `x_TD`, `q_TQ` and `rope` are those of the whole batch.
    """
    cos_TF, sin_TF = (group.take(table) for table in rope)
    queries_TIK = layer.indexer.queries(group.take(q_TQ), (cos_TF, sin_TF))
    weights_TI = layer.indexer.weights(group.take(x_TD))
    indices_TK: Tensor = layer.indexer_topk(
        queries_TIK, index_key_SI, weights_TI, group.cu_query, group.cu_key, layer.topk, layer.use_relu
    )
    return indices_TK
