"""Which keys a query attends to.

Shapes: T the group's tokens, S visible keys, I index heads, D index head size, K top-k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from arcforge_attention.entries import Entries
from arcforge_core.contracts.attention import Rope
from arcforge_core.contracts.batch import Group, Pages
from arcforge_core.ops.quant import wide_rows
from arcforge_core.ops.reference import laid_out

if TYPE_CHECKING:
    from arcforge_attention.dsa import DSA

Selection = tuple[Tensor | None, ...]
"""For each group of a plan the selected keys [T, K] of its tokens; None where they attend to all keys."""


@dataclass(frozen=True)
class IndexInputs:
    """What a group's index scores are made of: queries and head weights of its tokens, keys of its segments.

    With `pages` the keys are a cache's rows.
    """

    q_TID: Tensor
    k_SD: Tensor
    pages: Pages | None
    w_TI: Tensor

    def gathered(self, group: Group) -> IndexInputs:
        """Returns the same with the keys one after another."""
        return replace(self, k_SD=wide_rows(laid_out(self.k_SD, group.cu_key, self.pages)), pages=None)


def needs_selection(group: Group, topk: int) -> bool:
    """Says whether some segment of the group has more keys than a query may attend to."""
    return max(group.key_lengths) > topk


def index_inputs(layer: DSA, x_TD: Tensor, q_TQ: Tensor, entries: Entries, group: Group, rope: Rope) -> IndexInputs:
    """Runs the indexer's projections for a group; `x_TD`, `q_TQ` and `rope` are those of the whole batch."""
    assert layer.indexer is not None  # a shared layer selects nothing
    cos_TF, sin_TF = (group.take(table) for table in rope)
    return IndexInputs(
        layer.turned(layer.indexer.queries(group.take(q_TQ), (cos_TF, sin_TF)), entries.cache),
        *entries.paged("index_key", group),
        layer.indexer.weights(group.take(x_TD)),
    )


def select(layer: DSA, index: IndexInputs, group: Group) -> Tensor:
    """Returns the selected keys [T, K] of the group's tokens, numbered in their segment, ascending, -1 for none."""
    indices_TK: Tensor = layer.indexer_topk(
        index.q_TID, index.k_SD, index.w_TI, group.cu_query, group.cu_key, layer.topk, layer.use_relu, index.pages
    )
    return indices_TK
