"""A paged cache sized from `cache_spec()`, and the batches that use it. Shapes: T tokens, N sequences, P pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arcforge_core.contracts.attention import CacheEntry
from arcforge_core.contracts.batch import Group, SequenceBatch


@dataclass
class PagedLayerCache:
    """One layer's entries: name -> [rows, ...]; row = page * page_size + offset."""

    entries: dict[str, Tensor]
    page_size: int

    def write(self, batch: SequenceBatch, **values_T: Tensor) -> None:
        """Stores the new tokens' entries at ``batch.write_slots_T``."""
        if values_T.keys() != self.entries.keys():
            raise ValueError(f"this cache holds {sorted(self.entries)}, not {sorted(values_T)}")
        for name, value_T in values_T.items():
            self.entries[name].index_copy_(0, _slots(batch), value_T.to(self.entries[name].dtype))

    def read(self, name: str, batch: SequenceBatch, group: Group) -> Tensor:
        """Returns past and new entries of the group's segments laid one after another; see the contract."""
        starts = group.cu_key.tolist()
        parts = [
            self._read_one(self.entries[name], batch, n, starts[i + 1] - starts[i])
            for i, n in enumerate(group.segments)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _read_one(self, rows: Tensor, batch: SequenceBatch, segment: int, length: int) -> Tensor:
        if batch.pages_NP is None:
            raise ValueError("the batch has no page table")
        pages_P = batch.pages_NP[segment, : -(-length // self.page_size)]
        first = int(pages_P[0])
        if bool((pages_P == torch.arange(first, first + len(pages_P))).all()):
            return rows.narrow(0, first * self.page_size, length)
        offsets = torch.arange(self.page_size)
        slots = (pages_P[:, None] * self.page_size + offsets).flatten()[:length]
        return rows[slots.to(rows.device)]


def _slots(batch: SequenceBatch) -> Tensor:
    if batch.write_slots_T is None:
        raise ValueError("the batch has no write slots")
    return batch.write_slots_T


class PagedCache:
    """Pages for a fixed set of sequences, all allocated up front and consecutive, so that reads are views.

    Args:
        specs: each layer's `cache_spec()`.
        max_lengths: tokens that each sequence may reach.
        dtype, device: of the entries that name no dtype.
        page_size: tokens per page.
    """

    def __init__(
        self,
        specs: Sequence[tuple[CacheEntry, ...]],
        max_lengths: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        page_size: int = 64,
    ) -> None:
        counts = [-(-length // page_size) for length in max_lengths]
        self.pages_NP = torch.zeros(len(counts), max(counts), dtype=torch.int64)
        next_page = 0
        for n, count in enumerate(counts):
            self.pages_NP[n, :count] = torch.arange(next_page, next_page + count)
            next_page += count
        self.page_size, self.device = page_size, torch.device(device)
        self.max_lengths, self.lengths = list(max_lengths), [0] * len(counts)
        rows = next_page * page_size
        self.layers = [
            PagedLayerCache(
                {e.name: torch.zeros(rows, *e.shape, dtype=e.dtype or dtype, device=device) for e in spec}, page_size
            )
            for spec in specs
        ]

    def batch(self, sequences: Sequence[int], query_lengths: Sequence[int]) -> SequenceBatch:
        """Returns the batch that appends `query_lengths` tokens to `sequences`, and counts them as cached.

        Raises:
            ValueError: a sequence would exceed the length it was allocated for.
        """
        past = [self.lengths[n] for n in sequences]
        slots = []
        for n, start, query in zip(sequences, past, query_lengths, strict=True):
            if start + query > self.max_lengths[n]:
                raise ValueError(f"sequence {n}: {start} + {query} tokens exceed its {self.max_lengths[n]}")
            positions = torch.arange(start, start + query)
            slots.append(self.pages_NP[n][positions // self.page_size] * self.page_size + positions % self.page_size)
        batch = SequenceBatch.build(
            query_lengths,
            past,
            write_slots_T=torch.cat(slots),
            pages_NP=self.pages_NP[list(sequences)],
            device=self.device,
        )
        for n, query in zip(sequences, query_lengths, strict=True):
            self.lengths[n] += query
        return batch
