"""The inputs of the indexer's selection of keys.

Shapes: T tokens of a group, S visible keys, I index heads, D index head size, K top-k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from arcforge_core.contracts.batch import Group, Pages
from arcforge_core.ops import reference
from arcforge_core.ops.quant import wide_rows

Selection = tuple[Tensor | None, ...]
"""The selected keys [T, K] of each group's tokens; None for groups that attend to all keys."""


@dataclass(frozen=True)
class IndexInputs:
    """The inputs of a group's index scores: queries and head weights of its tokens, keys of its segments.

    Attributes:
        q_TID, k_SD, w_TI: queries, keys, head weights.
        pages: rows of the keys, if `k_SD` is a cache's rows.
        use_relu: whether dot products pass a ReLU.
    """

    q_TID: Tensor
    k_SD: Tensor
    pages: Pages | None
    w_TI: Tensor
    use_relu: bool

    def gathered(self, group: Group) -> IndexInputs:
        """Returns the same inputs with contiguous keys."""
        return replace(self, k_SD=wide_rows(reference.laid_out(self.k_SD, group.cu_key, self.pages)), pages=None)

    def scores(self, queries: slice, keys: slice) -> Tensor:
        """Returns the scores of the given queries and keys; the keys must be contiguous."""
        return reference.index_scores(self.q_TID[queries], self.k_SD[keys], self.w_TI[queries], self.use_relu)


def needs_selection(group: Group, topk: int) -> bool:
    """Returns whether a segment of the group has more keys than a query may attend to."""
    return max(group.key_lengths) > topk
