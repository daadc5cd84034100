"""Cached entries of a layer, read by groups of segments. Shapes: T new tokens, S visible keys of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from arcforge_core.contracts.attention import LayerCache
from arcforge_core.contracts.batch import Group, Pages, SequenceBatch


@dataclass(frozen=True)
class Entries:
    """The entries of a step's new tokens, and the cache with those of earlier tokens; created by `store`."""

    batch: SequenceBatch
    cache: LayerCache | None
    new_T: dict[str, Tensor]

    @classmethod
    def store(cls, batch: SequenceBatch, cache: LayerCache | None, **new_T: Tensor) -> Entries:
        """Writes the new tokens' entries into the cache, if there is one."""
        if cache is not None:
            cache.write(batch, **new_T)
        return cls(batch, cache, new_T)

    def read(self, name: str, group: Group, window: int | None = None) -> Tensor:
        """Returns an entry's values [S, ...] visible to a group; only new ones if the group has no past in a cache.

        A window limits each segment's past to at most ``window - 1`` values.
        """
        if group is self.batch.plan.prompt:
            return group.keys(self.new_T[name])
        if self.cache is None:
            raise ValueError("segments with a past need a cache")
        return self.cache.read(name, self.batch, group, window).to(self.new_T[name].dtype)

    def paged(self, name: str, group: Group) -> tuple[Tensor, Pages | None]:
        """Returns `read`'s values; for few tokens with a cache, its rows without a copy, and the pages of the keys.

        Copying all keys would dominate a step of few tokens, but costs little in a step of many.
        """
        if group is self.batch.plan.decode and self.cache is not None:
            rows_SC, pages = self.cache.paged(name, self.batch, group)
            if rows_SC.dtype == self.new_T[name].dtype:
                return rows_SC, pages
        return self.read(name, group), None


def join(batch: SequenceBatch, parts: Sequence[Tensor]) -> Tensor:
    """Puts the results of the plan's groups back into the batch's order; returns [T, ...]."""
    out_T: Tensor | None = None
    for group, part in zip(batch.plan.groups(), parts, strict=True):
        out_T = group.put(out_T, part, batch.num_tokens)
    assert out_T is not None  # a batch has at least one group
    return out_T
