"""Which sequences a step computes, and where their entries go. Integers only: no tensor is touched here.

Steps run one after another in the order in which they are scheduled. What is decided here may therefore take for
granted that the steps before it have run: pages of a sequence that ended are given to another one at once, and a prefix
is shared from the step after the one that computes it.

Shapes: N segments of a step, T their tokens, P pages of a sequence.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.kvcache.pages import PagePool
from arcforge_serving.kvcache.radix import Node, RadixTree
from arcforge_serving.kvcache.tier import FileTier
from arcforge_serving.sequence import Rank, Sequence


@dataclass(frozen=True)
class Segment:
    """A sequence's part of a step: `length` tokens from position `start` on; `draws` when the next one is drawn.

    The last `drafts` of the tokens are drafted.
    """

    sequence: Sequence
    start: int
    length: int
    draws: bool
    drafts: int = 0


@dataclass(frozen=True)
class Spill:
    """Before a step, a page's record is written to the second tier."""

    page: int
    ticket: int


@dataclass(frozen=True)
class Load:
    """Before a step, a record is put into a page."""

    page: int
    record: Tensor


Move = Spill | Load


@dataclass
class Counters:
    """What has happened so far."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    restored_pages: int = 0


class Scheduler:
    """Queue, running sequences, pages and prefix tree.

    Args:
        config: limits.
        pages: how many pages there are.
        longest: tokens of the longest sequence.
        reuses: whether prefixes are shared.
        tier: where evicted pages go.
        draft_tokens: drafts of a sequence at most.
    """

    def __init__(
        self,
        config: PagedEngineConfig,
        pages: int,
        longest: int,
        reuses: bool,
        tier: FileTier | None = None,
        draft_tokens: int = 0,
    ) -> None:
        self.config, self.size, self.reuses, self.draft_tokens = config, config.page_size, reuses, draft_tokens
        self.pages = PagePool(pages)
        spill = None if tier is None else self._spill
        # what the MTP module keeps of a token depends on the one behind it
        self.tree = RadixTree(self.pages, self.size, tier, spill, ahead=int(draft_tokens > 0))
        self.table_NP = np.zeros((config.max_running, self._pages_for(longest)), dtype=np.int64)
        self.running: list[Sequence] = []
        self.moves: list[Move] = []
        self.counters = Counters()
        self._slots = list(range(config.max_running))[::-1]
        self._queue: list[tuple[Rank, Sequence]] = []
        self._order = itertools.count()
        self._virtual = 0.0  # where the request begins that was admitted last
        self._ends: dict[str, float] = {}  # where each owner's last request ends

    # ---- the queue ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._queue)

    def rank(self, owner: str, priority: int, tokens: int) -> Rank:
        """Returns the place in the queue of an owner's next request of so many tokens.

        Owners take turns by tokens: a request begins where the owner's one before ended, or now. Each level of priority
        moves it forward by `priority_tokens`, so that everything that comes later than that many tokens comes later.
        """
        if len(self._ends) > 2 * self.config.max_waiting:  # owners that have no turn to wait for
            self._ends = {name: end for name, end in self._ends.items() if end > self._virtual}
        start = max(self._virtual, self._ends.get(owner, 0.0))
        self._ends[owner] = start + tokens
        return start - priority * self.config.priority_tokens, next(self._order)

    def enqueue(self, sequence: Sequence) -> None:
        """Appends a sequence to the queue, or puts it back in its place."""
        heapq.heappush(self._queue, (sequence.rank, sequence))

    def queued(self) -> list[Sequence]:
        """Returns the sequences in the queue."""
        return [sequence for _, sequence in self._queue]

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out of the queue, or from the running ones and gives its pages back."""
        if sequence.slot is not None:
            self.release(sequence)
        else:
            self._queue = [entry for entry in self._queue if entry[1] is not sequence]
            heapq.heapify(self._queue)

    # ---- a step ------------------------------------------------------------------------------------------------------

    def schedule(self, drafting: int = 0) -> list[Segment]:
        """Returns the segments of the next step: decoded sequences first, then prompts, then those that wait.

        Args:
            drafting: how many tokens the step is to draft for the one behind it, where there are pages for them.
        """
        segments: list[Segment] = []
        budget = self.config.max_batch_tokens
        if self._queue:
            self._make_way()
        self.running.sort(key=lambda sequence: sequence.rank)
        decoded = [sequence for sequence in self.running if sequence.decodes]
        others = [sequence for sequence in self.running if not sequence.decodes]
        spare = budget - len(decoded)
        for sequence in decoded:
            self._cut_drafts(sequence, spare)
            spare -= len(sequence.drafts)
        for sequence in decoded + others:
            budget -= self._append(segments, sequence, budget)
        if self._queue and budget:
            self._admit(segments, budget)
        for segment in segments:
            self.index(segment.sequence)
            if drafting and segment.draws:  # its last token may be the last of the drafts that are checked
                self._stretch(segment.sequence, segment.sequence.cached + drafting - 1)
        return segments

    def _cut_drafts(self, sequence: Sequence, spare: int) -> None:
        """Leaves a sequence the drafts that can be checked: of its output, the budget and its pages."""
        wanted = min(len(sequence.drafts), sequence.most - 2 - sequence.cached, spare)
        if wanted > 0:
            self._stretch(sequence, sequence.cached + 1 + wanted)
            wanted = min(wanted, len(sequence.pages) * self.size - sequence.cached - 1)
        del sequence.drafts[max(wanted, 0) :]

    def _stretch(self, sequence: Sequence, tokens: int) -> None:
        """Gives a sequence pages for so many tokens, if each running one can still grow by a page."""
        missing = self._pages_for(min(tokens, sequence.most - 1)) - len(sequence.pages)
        if missing > 0 and self.pages.free + self.tree.idle >= missing + len(self.running):
            self.tree.evict(missing)
            self._append_pages(sequence, self.pages.take(missing, sequence.pages[-1] if sequence.pages else None))

    def _append(self, segments: list[Segment], sequence: Sequence, budget: int) -> int:
        """Gives a running sequence its part of the step; returns its tokens, 0 when it has to wait."""
        length = min(sequence.remaining, budget)
        if sequence.slot is None or length <= 0 or not self._grow(sequence, sequence.cached + length, segments):
            return 0
        start, drafts = sequence.cached, len(sequence.drafts)
        sequence.cached += length
        draws = sequence.cached == sequence.length
        sequence.cached += drafts
        sequence.pending += draws
        segments.append(Segment(sequence, start, length + drafts, draws, drafts))
        return length + drafts

    def _grow(self, sequence: Sequence, tokens: int, segments: Seq[Segment]) -> bool:
        """Gives a sequence pages for so many tokens, if need be by preempting sequences behind it."""
        missing = self._pages_for(tokens) - len(sequence.pages)
        if missing <= 0:
            return True
        self.tree.evict(missing)
        while self.pages.free < missing:
            victim = self._last(segments, after=sequence.rank)
            if victim is None:
                return False
            self.preempt(victim)
            self.tree.evict(missing)
        room = self._pages_for(sequence.most) - len(sequence.pages)
        self._append_pages(sequence, self.pages.take(missing, sequence.pages[-1] if sequence.pages else None, room))
        return True

    def _append_pages(self, sequence: Sequence, pages: Seq[int]) -> None:
        first = len(sequence.pages)
        sequence.pages += pages
        self.table_NP[sequence.slot, first : len(sequence.pages)] = pages

    def _last(self, segments: Seq[Segment], after: Rank, below: int | None = None) -> Sequence | None:
        """Returns the last running sequence behind a rank, and below a priority if given, that is not in the step."""
        chosen = {id(segment.sequence) for segment in segments}
        behind = [
            sequence
            for sequence in self.running
            if sequence.rank > after and id(sequence) not in chosen and (below is None or sequence.priority < below)
        ]
        return max(behind, key=lambda sequence: sequence.rank, default=None)

    def index(self, sequence: Sequence) -> None:
        """Lets others find the pages that the sequence has filled with tokens that are known."""
        known = len(sequence.tokens) - self.tree.ahead
        filled = min(sequence.cached, known) // self.size if self.reuses else 0
        for number in range(len(sequence.nodes), filled):
            parent = sequence.nodes[-1] if sequence.nodes else sequence.root
            assert parent is not None  # it runs
            node = self.tree.add(parent, self.tree.key(sequence.tokens, number), sequence.pages[number])
            assert node.page is not None
            sequence.nodes.append(node)
            sequence.pages[number] = self.table_NP[sequence.slot, number] = node.page

    # ---- coming and going --------------------------------------------------------------------------------------------

    def _admit(self, segments: list[Segment], budget: int) -> None:
        """Lets sequences of the queue run, in its order, while there is room.

        One whose next page another one is just computing waits for it. The first one without room ends the search, so
        that large requests are not overtaken for ever.
        """
        later: list[tuple[Rank, Sequence]] = []
        coming = {key for sequence in self.running if (key := self._next_page(sequence)) is not None}
        while self._queue and budget and len(later) < self.config.max_running:
            entry = heapq.heappop(self._queue)
            sequence = entry[1]
            nodes = self._known(sequence)
            page = id(nodes[-1] if nodes else self.tree.root), self.tree.key(sequence.tokens, len(nodes))
            if page in coming and not sequence.params.prompt_logprobs:
                later.append(entry)
                continue
            if not self._has_room(sequence, nodes):
                later.append(entry)
                break
            self._start(sequence, nodes)
            budget -= self._append(segments, sequence, budget)
            if (key := self._next_page(sequence)) is not None:
                coming.add(key)
        for entry in later:
            heapq.heappush(self._queue, entry)

    def _next_page(self, sequence: Sequence) -> tuple[int, tuple[int, ...]] | None:
        """Returns the parent and the tokens of the page that the sequence will share next; None when not known yet."""
        end = (len(sequence.nodes) + 1) * self.size + self.tree.ahead
        if not self.reuses or end > len(sequence.tokens) or sequence.root is not self.tree.root:
            return None
        parent = sequence.nodes[-1] if sequence.nodes else sequence.root
        return id(parent), self.tree.key(sequence.tokens, len(sequence.nodes))

    def _make_way(self) -> None:
        """Preempts sequences of lower priority for the first one in the queue, as long as that helps."""
        head = self._queue[0][1]
        while not self._has_room(head, self._known(head)):
            victim = self._last([], head.rank, below=head.priority)
            if victim is None:
                return
            self.preempt(victim)

    def _known(self, sequence: Sequence) -> list[Node]:
        """Returns the nodes of the prefix that a waiting sequence may use: at least its last token is computed."""
        if not self.reuses or sequence.params.prompt_logprobs:
            return []
        return self.tree.match(sequence.tokens, (len(sequence.tokens) - 1) // self.size)

    def _has_room(self, sequence: Sequence, nodes: Seq[Node]) -> bool:
        """Says whether a waiting sequence with this known prefix can start, and each running one grow by a page."""
        there = [node for node in nodes if node.page is not None]
        free = self.pages.free + self.tree.idle - sum(not node.users for node in there)
        needed = self._pages_for(sequence.length) - len(there) + len(self.running)
        return bool(self._slots) and free >= needed

    def _start(self, sequence: Sequence, nodes: Seq[Node]) -> None:
        """Gives a sequence a slot and the pages of its prefix; `_has_room` was asked."""
        sequence.slot, sequence.root = self._slots.pop(), self.tree.root
        self._virtual = max(self._virtual, sequence.rank[0] + sequence.priority * self.config.priority_tokens)
        self.running.append(sequence)
        there = [node for node in nodes if node.page is not None]
        self._hold(sequence, there)
        for node in nodes[len(there) :]:
            if node.ticket is None or (record := self.tree.record(node)) is None:
                break
            self.tree.evict(1)
            if not self.pages.free or node.ticket is None:  # making room may have cost the record
                break
            (page,) = self.pages.take(1, sequence.pages[-1] if sequence.pages else None)
            self.tree.restore(node, page)
            self.moves.append(Load(page, record))
            self.counters.restored_pages += 1
            self._hold(sequence, [node])
        sequence.cached = len(sequence.nodes) * self.size
        if sequence.reused is None:
            sequence.reused = min(sequence.cached, sequence.prompt_length)
            sequence.begun = time.monotonic()
            self.counters.prompt_tokens += sequence.prompt_length
            self.counters.cached_tokens += sequence.reused

    def _hold(self, sequence: Sequence, nodes: Seq[Node]) -> None:
        self.tree.use(nodes)
        sequence.nodes += nodes
        self._append_pages(sequence, [node.page for node in nodes if node.page is not None])

    def preempt(self, sequence: Sequence) -> None:
        """Takes the pages of a running sequence, which goes back to its place in the queue."""
        self.release(sequence)
        self.enqueue(sequence)
        self.counters.preemptions += 1

    def release(self, sequence: Sequence) -> None:
        """Takes slot and pages of a running sequence; what it has filled stays in the tree for others."""
        assert sequence.slot is not None
        assert sequence.root is not None
        self.index(sequence)
        self.tree.release(sequence.nodes, sequence.root)
        self.pages.give(sequence.pages[len(sequence.nodes) :])
        self._slots.append(sequence.slot)
        self.running.remove(sequence)
        sequence.slot = sequence.root = None
        sequence.pages, sequence.nodes, sequence.drafts, sequence.cached = [], [], [], 0

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def _spill(self, page: int, ticket: int) -> None:
        self.moves.append(Spill(page, ticket))

    # ---- checking ----------------------------------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """Returns what is wrong with the ownership of pages: each is free, in the tree or a sequence's, once."""
        owners: dict[int, list[str]] = {page: [] for page in range(self.pages.count)}
        for page in np.flatnonzero(self.pages.is_free_P).tolist():
            owners[page].append("free")
        dead = {id(node): node for sequence in self.running for node in sequence.nodes}
        for node in {**dead, **{id(node): node for node in self.tree.nodes()}}.values():
            if node.page is not None:
                owners[node.page].append("the tree")
        for sequence in self.running:
            for page in sequence.pages[len(sequence.nodes) :]:
                owners[page].append(f"slot {sequence.slot}")
        wrong = [
            f"page {page} belongs to {' and '.join(who) or 'nobody'}" for page, who in owners.items() if len(who) != 1
        ]
        users = sum(node.users for node in self.tree.nodes())
        held = sum(sequence.root is self.tree.root and len(sequence.nodes) for sequence in self.running)
        if users != held:
            wrong.append(f"nodes count {users} users, sequences hold {held} of them")
        if self.pages.free != int(self.pages.is_free_P.sum()):
            wrong.append(f"{self.pages.free} pages are counted as free, {int(self.pages.is_free_P.sum())} are")
        idle = sum(not node.users and node.page is not None for node in self.tree.nodes())
        if self.tree.idle != idle:
            wrong.append(f"{self.tree.idle} nodes are counted as idle, {idle} are")
        return wrong
