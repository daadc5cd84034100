"""The sequences that wait, by owner, and which of them comes next: owners share the engine fairly."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from arcforge_serving.engine.sequence import Rank, SequenceState


@dataclass
class WaitingQueue:
    """Sequences in order of their ranks, one heap per owner.

    Attributes:
        most_running: sequences of one owner that run at a time; None has no bound.
        counts: waiting sequences by owner; other threads may read it.
    """

    most_running: int | None = None
    counts: Counter[str] = field(default_factory=Counter)
    _heaps: dict[str, list[tuple[Rank, SequenceState]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.counts.total()

    def push(self, sequence: SequenceState) -> None:
        heapq.heappush(self._heaps.setdefault(sequence.owner, []), (sequence.rank, sequence))
        self.counts[sequence.owner] += 1

    def remove(self, sequence: SequenceState) -> None:
        """Removes a sequence; no effect on one that does not wait."""
        heap = self._heaps.get(sequence.owner, [])
        if not any(each is sequence for _, each in heap):
            return
        if heap[0][1] is sequence:
            heapq.heappop(heap)
        else:
            heap[:] = [entry for entry in heap if entry[1] is not sequence]
            heapq.heapify(heap)
        self.counts[sequence.owner] -= 1
        if not heap:
            del self._heaps[sequence.owner], self.counts[sequence.owner]

    def sequences(self) -> list[SequenceState]:
        """Returns the sequences, owner by owner."""
        return [sequence for heap in self._heaps.values() for _, sequence in heap]

    def first(self, running: Mapping[str, int]) -> SequenceState | None:
        """Returns the sequence that comes next; None when no owner may run another one.

        That is the one of lowest rank, unless an owner with fewer running sequences has one of no lower priority.

        Args:
            running: running sequences by owner.
        """
        heads = [
            (running.get(owner, 0), *heap[0])
            for owner, heap in self._heaps.items()
            if self.most_running is None or running.get(owner, 0) < self.most_running
        ]
        if not heads:
            return None
        held, _, lowest = min(heads, key=lambda head: head[1])
        fewer = [head for head in heads if head[0] < held and head[2].priority >= lowest.priority]
        return min(fewer, key=lambda head: head[:2])[2] if fewer else lowest

    def last_of_largest(self, keep: int) -> list[SequenceState]:
        """Returns the sequences to refuse so that `keep` remain, of those that have never run and may be refused.

        Each is the last one of the owner that has the most of them.
        """
        fresh = [
            sorted(entry for entry in heap if entry[1].refusable and entry[1].reused is None)
            for heap in self._heaps.values()
        ]
        found: list[SequenceState] = []
        for _ in range(sum(map(len, fresh)) - keep):
            found.append(max(fresh, key=len).pop()[1])
        return found
