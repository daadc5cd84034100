"""A paged cache sized from `cache_spec()`, and the batches that use it. Shapes: T tokens, N sequences, P pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arcforge_core.contracts.attention import CacheSpec, StateEntry
from arcforge_core.contracts.batch import Group, Pages, SequenceBatch


@dataclass
class PagedLayerCache:
    """One layer's part of the cache.

    Attributes:
        entries: per-token entries, name -> [rows, ...]; row = page * page_size + offset.
        states: fixed-size entries, name -> [sequences, ...].
        page_size: tokens per page.
    """

    entries: dict[str, Tensor]
    states: dict[str, Tensor]
    page_size: int

    def write(self, batch: SequenceBatch, **values_T: Tensor) -> None:
        """Stores the new tokens' entries at ``batch.write_slots_T``."""
        if values_T.keys() != self.entries.keys():
            raise ValueError(f"this cache holds {sorted(self.entries)}, not {sorted(values_T)}")
        for name, value_T in values_T.items():
            self.entries[name].index_copy_(0, _slots(batch), value_T.to(self.entries[name].dtype))

    def read(self, name: str, batch: SequenceBatch, group: Group, window: int | None = None) -> Tensor:
        """Returns past and new entries of the group's segments, concatenated; see the contract."""
        rows = self.entries[name]
        if len(group.segments) == 1:
            (segment,), (end,) = group.segments, group.key_lengths
            if self._is_run(batch, segment, end):
                first, _ = batch.page_runs[segment]
                start = max(0, batch.past_lengths[segment] - window + 1) if window else 0
                return rows.narrow(0, first * self.page_size + start, end - start)
        return rows.index_select(0, batch.cached_rows(group, window, self.page_size).to(rows.device))

    def paged(self, name: str, batch: SequenceBatch, group: Group) -> tuple[Tensor, Pages | None]:
        """Returns a view where `read` does, otherwise all rows with their pages; copies nothing. See the contract."""
        if len(group.segments) == 1 and self._is_run(batch, group.segments[0], group.key_lengths[0]):
            return self.read(name, batch, group), None
        return self.entries[name], group.pages(self.page_size)

    def in_place(self, name: str, batch: SequenceBatch, group: Group) -> tuple[Tensor, Tensor, Pages]:
        """Returns rows, slots of the new tokens and pages; see the contract."""
        if list(self.entries) != [name]:
            raise ValueError(f"this cache holds {sorted(self.entries)}: an op that writes {name} would leave the rest")
        return self.entries[name], _slots(batch), group.pages(self.page_size)

    def _is_run(self, batch: SequenceBatch, segment: int, length: int) -> bool:
        return length <= batch.page_runs[segment][1] * self.page_size

    def read_state(self, name: str, batch: SequenceBatch, group: Group) -> Tensor:
        """Returns a fixed-size entry of the group's segments; see the contract."""
        state = self._state(name)
        value_N = state[_state_slots(batch, group, state.device)]
        fresh_N = (batch.past[list(group.segments)] == 0).to(value_N.device)
        return value_N.masked_fill(fresh_N.view(-1, *[1] * (value_N.ndim - 1)), 0)  # a row may have been used before

    def _state(self, name: str) -> Tensor:
        if name not in self.states:
            raise ValueError(f"this cache holds {sorted({**self.entries, **self.states})}, not {name!r}")
        return self.states[name]

    def write_state(self, name: str, batch: SequenceBatch, group: Group, value_N: Tensor) -> None:
        """Replaces a fixed-size entry of the group's segments."""
        state = self._state(name)
        state.index_copy_(0, _state_slots(batch, group, state.device), value_N.to(state.dtype))


def _slots(batch: SequenceBatch) -> Tensor:
    if batch.write_slots_T is None:
        raise ValueError("the batch has no write slots")
    return batch.write_slots_T


def _state_slots(batch: SequenceBatch, group: Group, device: torch.device) -> Tensor:
    if batch.state_slots_N is None:
        raise ValueError("the batch has no state slots: this layer's cache holds a state per sequence")
    return batch.state_slots_N[list(group.segments)].to(device)


def layer_cache(
    spec: CacheSpec, *, rows: int, sequences: int, page_size: int, dtype: torch.dtype, device: torch.device | str
) -> PagedLayerCache:
    """Returns a layer's zeroed cache for this many rows and sequences; entries that name no dtype get `dtype`."""
    tensors: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    for entry in spec:
        is_state = isinstance(entry, StateEntry)
        shape = (sequences if is_state else rows, *entry.shape)
        tensors[is_state][entry.name] = torch.zeros(shape, dtype=entry.dtype or dtype, device=device)
    return PagedLayerCache(*tensors, page_size)


class PagedCache:
    """Pages for a fixed set of sequences, all allocated up front and consecutive, so that reads are views.

    Args:
        specs: each layer's `cache_spec()`.
        max_lengths: maximum number of tokens of each sequence.
        dtype, device: of the entries that name no dtype.
        page_size: tokens per page.
        mtp: the MTP module's `cache_spec()` if it drafts.

    Attributes:
        layers: each decoder layer's part.
        mtp: the MTP module's part, or None.
    """

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        max_lengths: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        page_size: int = 64,
        mtp: CacheSpec | None = None,
    ) -> None:
        counts = [-(-length // page_size) for length in max_lengths]
        self.pages_NP = torch.zeros(len(counts), max(counts), dtype=torch.int64)
        next_page = 0
        for n, count in enumerate(counts):
            self.pages_NP[n, :count] = torch.arange(next_page, next_page + count)
            next_page += count
        self.page_size, self.device = page_size, torch.device(device)
        self.max_lengths, self.lengths = list(max_lengths), [0] * len(counts)
        sizes = {"rows": next_page * page_size, "sequences": len(counts), "page_size": page_size}
        self.layers = [layer_cache(spec, **sizes, dtype=dtype, device=device) for spec in specs]
        self.mtp = None if mtp is None else layer_cache(mtp, **sizes, dtype=dtype, device=device)

    def batch(self, sequences: Sequence[int], query_lengths: Sequence[int]) -> SequenceBatch:
        """Returns the batch that appends `query_lengths` tokens to `sequences`, and counts them as cached.

        Raises:
            ValueError: a sequence would exceed the length it was allocated for.
        """
        past = [self.lengths[n] for n in sequences]
        slots = []
        for n, start, query in zip(sequences, past, query_lengths, strict=True):
            if start + query > self.max_lengths[n]:
                raise ValueError(f"sequence {n}: {start} + {query} tokens exceed its limit of {self.max_lengths[n]}")
            positions = torch.arange(start, start + query)
            slots.append(self.pages_NP[n][positions // self.page_size] * self.page_size + positions % self.page_size)
        batch = SequenceBatch.build(
            query_lengths,
            past,
            write_slots_T=slots[0] if len(slots) == 1 else torch.cat(slots),
            pages_NP=self.pages_NP[list(sequences)],
            state_slots_N=torch.tensor(list(sequences)),
            device=self.device,
        )
        for n, query in zip(sequences, query_lengths, strict=True):
            self.lengths[n] += query
        return batch
