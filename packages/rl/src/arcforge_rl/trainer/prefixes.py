"""Branches that begin with the same tokens, such as replies to one prompt, laid out so that these are computed once.

The result is a tree of segments: each branch reads the segments on its path. Sorted branches have their longest common
prefixes with their neighbours, so the tree follows from these lengths alone.

L: tokens of a branch; X: numbers of a token; T: tokens of the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from arcforge_core.contracts.algorithm import Array, Branch
from arcforge_core.contracts.batch import SequenceBatch

LEAST = 16
"""Fewer common tokens are computed for each branch: a segment of its own costs a copy of all keys before it."""
SAVED = 0.05
"""Branches are laid out one by one where sharing saves a smaller part of their tokens."""

Alike = Callable[[Branch, int], Array]
"""Returns numbers [L, X] of a branch's first L tokens; tokens with equal numbers after equal ones can be shared."""
Reading = tuple[Branch, int]
"""A branch, and how many of its tokens are read."""


def by_ids(branch: Branch, length: int) -> Array:
    """Token ids: enough where nothing else decides what a model computes; see `Alike`."""
    return branch.ids[:length, None]


@dataclass(frozen=True)
class BranchLayout:
    """Tokens of branches as segments.

    Attributes:
        tokens_T: int64.
        batch: the segments.
        rows: rows of `tokens_T` that each branch reads, int64.
    """

    tokens_T: Tensor
    batch: SequenceBatch
    rows: Sequence[Tensor]


def common(alike: Alike, first: Reading, second: Reading) -> int:
    """Returns how many tokens two branches can share; 0 where that is fewer than `LEAST`."""
    shared = _common(alike(*first), alike(*second))
    return shared if shared >= LEAST else 0


def laid_out(reads: Sequence[Reading], alike: Alike | None) -> BranchLayout:
    """Lays out branches, with common tokens once if `alike` is given and that saves enough (`SAVED`)."""
    segments = [(number, 0, length) for number, (_, length) in enumerate(reads)]
    paths: list[tuple[int, ...]] | None = None
    if alike is not None:
        tree, paths_of = _tree([alike(*read) for read in reads])
        separate = sum(length for _, length in reads)
        if separate - sum(end - begin for _, begin, end in tree) >= max(1, SAVED * separate):
            segments, paths = tree, paths_of
    tokens_T = torch.cat([torch.tensor(reads[of][0].ids[begin:end]) for of, begin, end in segments])
    lengths = [end - begin for _, begin, end in segments]
    batch = SequenceBatch.build(lengths) if paths is None else SequenceBatch.shared(lengths, paths)
    of_segment = torch.arange(len(tokens_T)).split(lengths)
    rows = of_segment if paths is None else [torch.cat([of_segment[n] for n in path]) for path in paths]
    return BranchLayout(tokens_T, batch, rows)


def _tree(numbers: Sequence[Array]) -> tuple[list[tuple[int, int, int]], list[tuple[int, ...]]]:
    """Returns segments as (branch, begin, end), and of each branch the numbers of the segments that it reads."""
    order = sorted(range(len(numbers)), key=lambda n: np.ascontiguousarray(numbers[n]).tobytes())
    shared = [_common(numbers[a], numbers[b]) for a, b in pairwise(order)]
    segments: list[tuple[int, int, int]] = []
    paths: list[tuple[int, ...]] = [()] * len(numbers)
    ranges: list[tuple[int, int, int, tuple[int, ...]]] = [(0, len(order), 0, ())]  # of `order`, depth, path
    while ranges:
        low, high, depth, path = ranges.pop()
        least = len(numbers[order[low]]) if high == low + 1 else min(shared[low : high - 1])
        if least - depth >= (1 if high == low + 1 else LEAST):
            path = (*path, len(segments))
            segments.append((order[low], depth, least))
            depth = least
        if high == low + 1:
            paths[order[low]] = path
            continue
        ends = [n + 1 for n in range(low, high - 1) if shared[n] == least]
        ranges += [(a, b, depth, path) for a, b in zip([low, *ends], [*ends, high], strict=True)]
    return segments, paths


def _common(first_LX: Array, second_LX: Array) -> int:
    length = min(len(first_LX), len(second_LX))
    differs_L = (first_LX[:length] != second_LX[:length]).any(1)
    return int(differs_L.argmax()) if differs_L.any() else length
