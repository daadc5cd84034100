"""The batch layout shared by training and serving: concatenated segments of different lengths.

Shapes: T tokens of the batch, N segments, P pages of a segment at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from arcforge_core.contracts.repeated_rows import Runs, repeat_rows

FEW_TOKENS = 4
"""A segment with a past and at most this many new tokens is decoded in absorbed form (1 + 3 MTP drafts)."""


@dataclass(frozen=True)
class Pages:
    """Cache location of the keys of N segments: key s of segment n is in row ``table[n, s // size] * size + s % size``.

    Attributes:
        table_NP: int64 [N, P] on the host; entries after a segment's last page are arbitrary valid pages.
        size: rows of a page.
        rows: minimum number of cache rows.
    """

    table_NP: Tensor
    size: int
    rows: int

    def key_rows(self, cu_key: Tensor) -> Tensor:
        """Returns the cache rows [S] of all keys, segment by segment, on the host."""
        lengths: list[int] = cu_key.diff().tolist()
        offsets = torch.arange(self.size)
        return torch.cat(
            [
                (pages_P[: -(-length // self.size), None] * self.size + offsets).flatten()[:length]
                for pages_P, length in zip(self.table_NP, lengths, strict=True)
            ]
        )


@dataclass(frozen=True)
class Group:
    """Segments that attention treats alike, with their rows in the batch.

    Attributes:
        segments: segment numbers, in batch order.
        rows_T: int64 rows of the group's tokens, on the batch's device; None means all rows in order.
        cu_query: int32 [n+1] on the host, cumulative new tokens of the group's segments.
        cu_key: int32 [n+1] on the host, cumulative visible keys (past + new) of the group's segments.
        pages_NP: int64 [n, P] on the host, the page table of the group's segments; None without a cache.
        key_runs: runs of the batch's rows that are the visible keys of the group's segments, laid one after another;
            None where segments see no rows of other segments.
    """

    segments: tuple[int, ...]
    rows_T: Tensor | None
    cu_query: Tensor
    cu_key: Tensor
    pages_NP: Tensor | None = None
    key_runs: Runs | None = None

    @cached_property
    def key_lengths(self) -> list[int]:
        """Visible keys (past + new) of each segment in the group."""
        lengths: list[int] = self.cu_key.diff().tolist()
        return lengths

    @cached_property
    def num_pages(self) -> int:
        """Minimum number of cache pages that the page table requires."""
        if self.pages_NP is None:
            raise ValueError("the batch has no page table")
        lowest, highest = (int(page) for page in torch.aminmax(self.pages_NP))
        if lowest < 0:
            raise ValueError(f"the page table holds {lowest}: pages are numbered from 0")
        return highest + 1

    def pages(self, size: int) -> Pages:
        """Returns the cache location of the group's keys, for pages of `size` rows."""
        rows = self.num_pages * size
        assert self.pages_NP is not None
        return Pages(self.pages_NP, size, rows)

    def take(self, x_T: Tensor) -> Tensor:
        """Returns the group's rows of a per-token tensor."""
        return x_T if self.rows_T is None else x_T[self.rows_T]

    def keys(self, x_T: Tensor) -> Tensor:
        """Returns a per-token tensor's rows [S, ...] of the group's keys, for groups without a past in a cache."""
        return self.take(x_T) if self.key_runs is None else repeat_rows(x_T, self.key_runs)

    def cu_window(self, window: int) -> Tensor:
        """Returns `cu_key` when only the last ``window - 1`` keys of each segment's past are present."""
        query_N, key_N = self.cu_query.diff(), self.cu_key.diff()
        return cumulative((query_N + (key_N - query_N).clamp(max=window - 1)).tolist())

    def put(self, out_T: Tensor | None, x_T: Tensor, num_tokens: int) -> Tensor:
        """Writes the group's rows into `out_T`, which is created when it is None."""
        if self.rows_T is None:
            return x_T
        if out_T is None:
            out_T = x_T.new_zeros((num_tokens, *x_T.shape[1:]))
        return out_T.index_copy(0, self.rows_T, x_T)


@dataclass(frozen=True)
class Plan:
    """The three groups of a step, each None when empty. They alone determine the form of attention.

    Attributes:
        prompt: segments without a past, or with one in this batch (`SequenceBatch.shared`): expanded attention over the
            new tokens only.
        decode: segments with a past and at most `FEW_TOKENS` new tokens: absorbed attention over the cache.
        chunk: the remaining segments: expanded attention over past and new tokens.
    """

    prompt: Group | None
    decode: Group | None
    chunk: Group | None

    @property
    def only_decodes(self) -> bool:
        """Whether all segments are in `decode`."""
        return self.prompt is None and self.chunk is None

    def groups(self) -> list[Group]:
        """Returns the groups that are not empty."""
        return [g for g in (self.prompt, self.decode, self.chunk) if g is not None]


def cumulative(lengths: Sequence[int]) -> Tensor:
    """Returns int32 [n+1] cumulative sums that start at 0, on the host."""
    sums = np.zeros(len(lengths) + 1, dtype=np.int32)  # numpy takes a third of torch's time for a few values
    np.cumsum(lengths, out=sums[1:])
    return torch.from_numpy(sums)


def _positions(query: Sequence[int], past: Sequence[int]) -> Tensor:
    """Returns int64 [T], the position of each token in its sequence."""
    query_N = np.array(query, dtype=np.int64)
    ends_N = query_N.cumsum()
    shift_T = np.repeat(np.array(past, dtype=np.int64) - ends_N + query_N, query_N)
    return torch.from_numpy(np.arange(ends_N[-1]) + shift_T)


def _group(
    segments: list[int], query: list[int], past: list[int], pages_NP: Tensor | None, device: torch.device
) -> Group | None:
    if not segments:
        return None
    rows: Tensor | None = None
    if len(segments) < len(query):
        starts = cumulative(query).tolist()
        rows = torch.cat([torch.arange(starts[n], starts[n] + query[n]) for n in segments]).to(device)
        pages_NP = None if pages_NP is None else pages_NP[segments]
    return Group(
        tuple(segments),
        rows,
        cumulative([query[n] for n in segments]),
        cumulative([query[n] + past[n] for n in segments]),
        pages_NP,
    )


@dataclass(frozen=True)
class SequenceBatch:
    """N concatenated segments; causal is bottom-right: token j of a segment sees past + j + 1 keys.

    Build it with `build`. In training a segment is a document, ``past`` is 0 and there is no page table.

    Attributes:
        cu_query: int32 [N+1] on the host, so that reading lengths does not synchronise with the device.
        past: int32 [N] on the host, tokens of each sequence that are already cached.
        positions_T: int64 [T], position of each token in its sequence.
        write_slots_T: int64 [T], cache row of each new token; None without a cache.
        pages_NP: int64 [N, P] on the host, page table; None without a cache.
        state_slots_N: int64 [N] on the host, cache row of each segment's fixed-size state; None without a cache.
        plan: groups shared by all layers.
        paths: segments of each sequence from its first token, where sequences share segments; see `shared`.
    """

    cu_query: Tensor
    past: Tensor
    positions_T: Tensor
    write_slots_T: Tensor | None
    pages_NP: Tensor | None
    state_slots_N: Tensor | None
    plan: Plan = field(repr=False)
    paths: tuple[tuple[int, ...], ...] | None = None

    @staticmethod
    def shared(
        lengths: Sequence[int], paths: Sequence[Sequence[int]], *, device: torch.device | str = "cpu"
    ) -> SequenceBatch:
        """Builds a batch for training, without a cache, whose sequences have their first tokens in common.

        A segment is computed once, however many sequences contain it: its tokens see those of the segments before it.
        Layers need the ability (`arcforge_core.contracts.attention.Attention.shares_prefixes`).

        Args:
            lengths: tokens of each segment, each >= 1.
            paths: of each sequence its segments, in ascending order from its first token; a segment follows the same
                segments in all sequences.
            device: device of the per-token tensors.

        Raises:
            ValueError: an empty segment, or paths that are no such sequences.
        """
        query, cu_query = [int(n) for n in lengths], cumulative(lengths)
        before: dict[int, tuple[int, ...]] = {}
        for path in paths:
            for place, segment in enumerate(path):
                head = tuple(path[:place])
                if before.setdefault(segment, head) != head or (head and head[-1] >= segment):
                    raise ValueError(f"segment {segment} follows {head} and {before[segment]}")
        if not query or min(query) < 1 or sorted(before) != [*range(len(query))]:
            raise ValueError(f"bad segments: lengths={query}, paths={[*paths]}")
        starts: list[int] = cu_query.tolist()
        past = [sum(query[s] for s in before[n]) for n in range(len(query))]
        rows = [(starts[s], starts[s + 1]) for n in range(len(query)) for s in (*before[n], n)]
        cu_key = cumulative([p + q for p, q in zip(past, query, strict=True)])
        group = Group(tuple(range(len(query))), None, cu_query, cu_key, key_runs=tuple(rows))
        of_past = torch.tensor(past, dtype=torch.int32)
        positions_T, plan = _positions(query, past).to(device), Plan(group, None, None)
        return SequenceBatch(cu_query, of_past, positions_T, None, None, None, plan, tuple(map(tuple, paths)))

    @cached_property
    def contains_LN(self) -> Tensor:
        """Whether each of the L sequences of `paths` contains each segment, fp32 [L, N] of 0 and 1, on the host."""
        contains_LN = torch.zeros(len(self.paths or ()), self.num_segments)
        for sequence, path in enumerate(self.paths or ()):
            contains_LN[sequence, list(path)] = 1.0
        return contains_LN

    @staticmethod
    def build(
        query_lengths: Sequence[int],
        past_lengths: Sequence[int] | None = None,
        *,
        write_slots_T: Tensor | None = None,
        pages_NP: Tensor | None = None,
        state_slots_N: Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> SequenceBatch:
        """Builds a batch and its plan.

        Args:
            query_lengths: new tokens of each segment, each >= 1.
            past_lengths: cached tokens of each segment; zeros when absent.
            write_slots_T, pages_NP: see the class; both or neither.
            state_slots_N: see the class; required by layers that keep a state.
            device: device of the per-token tensors.

        Raises:
            ValueError: an empty segment, lengths that do not match, a past without a page table, or only one of
                write_slots_T and pages_NP.
        """
        query = [int(n) for n in query_lengths]
        past = [0] * len(query) if past_lengths is None else [int(n) for n in past_lengths]
        if not query or min(query) < 1 or len(past) != len(query) or min(past) < 0:
            raise ValueError(f"bad segment lengths: query={query}, past={past}")
        if (pages_NP is None) != (write_slots_T is None):
            raise ValueError("pages_NP and write_slots_T must be given together")
        if any(past) and pages_NP is None:
            raise ValueError("segments with a past need pages_NP and write_slots_T")
        device = torch.device(device)
        prompt: list[int] = []
        decode: list[int] = []
        chunk: list[int] = []
        for n, (new, old) in enumerate(zip(query, past, strict=True)):
            (prompt if old == 0 else decode if new <= FEW_TOKENS else chunk).append(n)
        plan = Plan(*(_group(part, query, past, pages_NP, device) for part in (prompt, decode, chunk)))
        return SequenceBatch(
            cumulative(query),
            torch.from_numpy(np.array(past, dtype=np.int32)),
            _positions(query, past).to(device),
            None if write_slots_T is None else write_slots_T.to(device),
            pages_NP,
            state_slots_N,
            plan,
        )

    @cached_property
    def past_lengths(self) -> list[int]:
        """Cached tokens of each segment."""
        lengths: list[int] = self.past.tolist()
        return lengths

    @cached_property
    def page_runs(self) -> list[tuple[int, int]]:
        """Returns for each segment its first page, and the number of consecutive pages from there."""
        if self.pages_NP is None:
            raise ValueError("the batch has no page table")
        follows_NP = self.pages_NP.diff(dim=1) == 1
        runs_N = 1 + follows_NP.long().cumprod(1).sum(1)
        return list(zip(self.pages_NP[:, 0].tolist(), runs_N.tolist(), strict=True))

    @cached_property
    def _cached_rows(self) -> dict[tuple[int, int | None], Tensor]:
        return {}

    def cached_rows(self, group: Group, window: int | None, page_size: int) -> Tensor:
        """Returns int64 [S], on the host, the cache rows of the past and new tokens of the group's segments.

        Computed once per step, because all layers and entries read the same rows. With a window, includes only the last
        ``window - 1`` rows of each segment's past.
        """
        if self.pages_NP is None:
            raise ValueError("the batch has no page table")
        key = (group.segments[0], window)  # a segment is in one group only
        if key not in self._cached_rows:
            parts, offsets = [], torch.arange(page_size)
            for n, end in zip(group.segments, group.key_lengths, strict=True):
                start = max(0, self.past_lengths[n] - window + 1) if window else 0
                skipped = start // page_size
                pages_P = self.pages_NP[n, skipped : -(-end // page_size)]
                rows_S = (pages_P[:, None] * page_size + offsets).flatten()
                parts.append(rows_S[start - skipped * page_size : end - skipped * page_size])
            self._cached_rows[key] = torch.cat(parts)
        return self._cached_rows[key]

    @cached_property
    def num_tokens(self) -> int:
        """Number of new tokens of all segments, T."""
        return int(self.cu_query[-1])

    @property
    def num_segments(self) -> int:
        """Number of segments, N."""
        return len(self.past)

    def query_lengths(self) -> list[int]:
        """Returns the new tokens of each segment."""
        lengths: list[int] = (self.cu_query[1:] - self.cu_query[:-1]).tolist()
        return lengths

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SequenceBatch:
        """Returns the batch with its per-token tensors on `device`; host tensors stay."""
        device = torch.device(device)
        if device == self.positions_T.device:
            return self

        def move(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device, non_blocking=non_blocking)

        def move_group(group: Group | None) -> Group | None:
            return None if group is None else dataclasses.replace(group, rows_T=move(group.rows_T))

        plan = Plan(*(move_group(g) for g in (self.plan.prompt, self.plan.decode, self.plan.chunk)))
        positions_T = self.positions_T.to(device, non_blocking=non_blocking)
        return dataclasses.replace(self, positions_T=positions_T, write_slots_T=move(self.write_slots_T), plan=plan)
