"""Which sequences a step computes, and where their entries go. Integers only: no tensor is touched here.

Steps run one after another in the order in which they are scheduled. Decisions may therefore assume
that earlier steps have run: pages of a sequence that ended are reused immediately, and a prefix is shared from the step
after the one that computes it.

Shapes: N segments of a step, T their tokens, P pages of a sequence.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.kvcache.pages import PagePool
from arcforge_serving.engine.kvcache.radix import Key, Node, RadixTree
from arcforge_serving.engine.kvcache.tier import FileTier
from arcforge_serving.engine.sequence import Rank, SequenceState
from arcforge_serving.engine.waiting import WaitingQueue

MOST_SESSIONS = 65536
"""Sessions whose generation of weights is remembered; one that is forgotten counts as new."""


@dataclass(frozen=True)
class Segment:
    """A sequence's part of a step: `length` tokens from position `start` on; `samples` when the next one is sampled.

    The last `drafts` of the tokens are drafted.
    """

    sequence: SequenceState
    start: int
    length: int
    samples: bool
    drafts: int = 0


@dataclass(frozen=True)
class Spill:
    """Before a step, a page's record is written to the second tier."""

    page: int
    ticket: int


@dataclass(frozen=True)
class Restore:
    """Before a step, a record is put into a page."""

    page: int
    record: Tensor


Move = Spill | Restore


@dataclass
class Counters:
    """Counts of the scheduler's work so far."""

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
        # the MTP module's entry of a token depends on the next token
        self.tree = RadixTree(self.pages, self.size, tier, spill, ahead=int(draft_tokens > 0))
        self.table_NP = np.zeros((config.max_running, self._pages_for(longest)), dtype=np.int64)
        self.running: list[SequenceState] = []
        self.moves: list[Move] = []
        self.counters = Counters()
        self._slots = list(range(config.max_running))[::-1]
        self.queue = WaitingQueue(config.max_running_per_owner)
        self.held: Counter[str] = Counter()  # running sequences by owner
        self._order = itertools.count()
        self._virtual = 0.0  # where the request begins that was admitted last
        self._ends: dict[str, float] = {}  # where each owner's last request ends
        self._sessions: OrderedDict[tuple[str, str], Node] = OrderedDict()  # root of each salt's session, oldest first

    # ---- the queue ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self.queue)

    def rank(self, owner: str, priority: int, tokens: int) -> Rank:
        """Returns the place in the queue of an owner's next request of `tokens` tokens.

        Owners take turns by tokens: a request begins where the owner's one before ended, or now. Each level of priority
        moves it forward by `priority_tokens`, so that everything that comes later than that many tokens comes later.
        """
        if len(self._ends) > 2 * self.config.max_waiting:  # owners that have no turn to wait for
            self._ends = {name: end for name, end in self._ends.items() if end > self._virtual}
        start = max(self._virtual, self._ends.get(owner, 0.0))
        self._ends[owner] = start + tokens
        return start - priority * self.config.priority_tokens, next(self._order)

    def enqueue(self, sequence: SequenceState) -> None:
        """Appends a sequence to the queue, or puts it back in its place."""
        self.queue.push(sequence)

    def queued(self) -> list[SequenceState]:
        """Returns the sequences in the queue."""
        return self.queue.sequences()

    def surplus(self) -> list[SequenceState]:
        """Returns the sequences to refuse, since more than `max_waiting` have not run yet."""
        if self.waiting <= self.config.max_waiting:
            return []
        found = self.queue.last_of_largest(keep=self.config.max_waiting)
        for sequence in found:
            self.queue.remove(sequence)
        return found

    def remove(self, sequence: SequenceState) -> None:
        """Takes a sequence out of the queue, or from the running ones and gives its pages back."""
        if sequence.slot is not None:
            self.release(sequence)
        else:
            self.queue.remove(sequence)

    # ---- a step ------------------------------------------------------------------------------------------------------

    def schedule(self, drafting: int = 0) -> list[Segment]:
        """Returns the segments of the next step: decoded sequences first, then prompts, then those that wait.

        Args:
            drafting: how many tokens the step drafts for the next one, if there are pages for them.
        """
        segments: list[Segment] = []
        budget = self.config.max_batch_tokens
        self._make_way()
        self.running.sort(key=lambda sequence: sequence.rank)
        decoded: list[SequenceState] = []
        others: list[SequenceState] = []
        for sequence in self.running:
            (decoded if sequence.decodes else others).append(sequence)
        spare = budget - len(decoded)
        for sequence in decoded:
            if sequence.drafts:
                self._cut_drafts(sequence, spare)
                spare -= len(sequence.drafts)
        for sequence in decoded + others:
            budget -= self._append(segments, sequence, budget)
        if self.waiting and budget:
            self._admit(segments, budget)
        for segment in segments:
            self.index(segment.sequence)
            if drafting and segment.samples:  # its last token may be the last of the drafts that are checked
                self._stretch(segment.sequence, segment.sequence.cached + drafting - 1)
        return segments

    def _cut_drafts(self, sequence: SequenceState, spare: int) -> None:
        """Leaves a sequence the drafts that can be checked: of its output, the budget and its pages."""
        wanted = min(len(sequence.drafts), sequence.most - 2 - sequence.cached, spare)
        if wanted > 0:
            self._stretch(sequence, sequence.cached + 1 + wanted)
            wanted = min(wanted, len(sequence.pages) * self.size - sequence.cached - 1)
        del sequence.drafts[max(wanted, 0) :]

    def _stretch(self, sequence: SequenceState, tokens: int) -> None:
        """Gives a sequence pages for `tokens`, if each running one can still grow by a page."""
        missing = self._pages_for(min(tokens, sequence.most - 1)) - len(sequence.pages)
        if missing > 0 and self.pages.free + self.tree.idle >= missing + len(self.running):
            self.tree.evict(missing)
            self._append_pages(sequence, self.pages.take(missing, sequence.pages[-1] if sequence.pages else None))

    def _append(self, segments: list[Segment], sequence: SequenceState, budget: int) -> int:
        """Gives a running sequence its part of the step; returns its tokens, 0 when it has to wait."""
        length = min(sequence.remaining, budget)
        if sequence.slot is None or length <= 0 or not self._grow(sequence, sequence.cached + length, segments):
            return 0
        start, drafts = sequence.cached, len(sequence.drafts)
        sequence.cached += length
        samples = sequence.cached == sequence.length
        sequence.cached += drafts
        sequence.pending += samples
        segments.append(Segment(sequence, start, length + drafts, samples, drafts))
        return length + drafts

    def _grow(self, sequence: SequenceState, tokens: int, segments: Sequence[Segment]) -> bool:
        """Gives a sequence pages for `tokens`, if need be by preempting others: of owners with more running sequences,
        else later ones, unless their owner has fewer.
        """
        missing = self._pages_for(tokens) - len(sequence.pages)
        if missing <= 0:
            return True
        self.tree.evict(missing)
        while self.pages.free < missing:
            chosen = {id(segment.sequence) for segment in segments}
            victim = self._above_share(sequence, self.held[sequence.owner], chosen)
            victim = victim or self._last_after(sequence, chosen)
            if victim is None:
                return False
            self.preempt(victim)
            self.tree.evict(missing)
        room = self._pages_for(sequence.most) - len(sequence.pages)
        self._append_pages(sequence, self.pages.take(missing, sequence.pages[-1] if sequence.pages else None, room))
        return True

    def _append_pages(self, sequence: SequenceState, pages: Sequence[int]) -> None:
        first = len(sequence.pages)
        sequence.pages += pages
        self.table_NP[sequence.slot, first : len(sequence.pages)] = pages

    def _last_after(self, sequence: SequenceState, chosen: Set[int] = frozenset()) -> SequenceState | None:
        """Returns the last running sequence after one, except the chosen and those of owners with fewer running ones.

        An owner's first sequence finds one: another of the same owner, or else no owner has fewer.
        """
        held, mine = self.held, self.held[sequence.owner]
        later = [
            each
            for each in self.running
            if each.rank > sequence.rank
            and id(each) not in chosen
            and (held[each.owner] >= mine or each.priority < sequence.priority)
        ]
        return max(later, key=lambda each: each.rank, default=None)

    def _above_share(self, sequence: SequenceState, share: int, chosen: Set[int] = frozenset()) -> SequenceState | None:
        """Returns the last running sequence, of no higher priority, of the other owner with the most of them.

        Args:
            sequence: needs room.
            share: running sequences that its owner has with it; the other owner keeps as many at least.
            chosen: ids of sequences that are in the step already.
        """
        held = self.held
        others = [
            each
            for each in self.running
            if each.owner != sequence.owner
            and held[each.owner] > share
            and each.priority <= sequence.priority
            and id(each) not in chosen
        ]
        return max(others, key=lambda each: (held[each.owner], each.rank), default=None)

    def base(self, sequence: SequenceState) -> Node:
        """Returns the root at which a sequence that starts now looks for its prefix.

        That is the present one. With ``prefix_at_update=keep`` it is an earlier one for a sequence that has started
        before an update, and for one of a session that had: only these read entries of earlier weights.
        """
        found = sequence.base
        if found is None and sequence.session:
            found = self._sessions.get((sequence.salt, sequence.session))
        return found if self._keeps and found is not None and self.tree.lives(found) else self.tree.root

    def updated(self) -> None:
        """The weights have changed."""
        if self._keeps:
            self.tree.renew()
        else:
            self.tree.turn()

    @property
    def _keeps(self) -> bool:
        return self.config.prefix_at_update == "keep"

    def index(self, sequence: SequenceState) -> None:
        """Lets others find the pages that the sequence has filled with tokens that are known."""
        known = len(sequence.tokens) - self.tree.ahead
        filled = min(sequence.cached, known) // self.size if self.reuses else 0
        for number in range(len(sequence.nodes), filled):
            parent = sequence.nodes[-1] if sequence.nodes else sequence.root
            assert parent is not None  # it runs
            key = self.tree.key(sequence.tokens, number, sequence.salt)
            if sequence.root is not self.tree.root and key in parent.children:
                return  # other weights have computed that page: it must not be written again, nor followed by these
            node = self.tree.add(parent, key, sequence.pages[number])
            assert node.page is not None
            sequence.nodes.append(node)
            sequence.pages[number] = self.table_NP[sequence.slot, number] = node.page

    # ---- coming and going --------------------------------------------------------------------------------------------

    def _admit(self, segments: list[Segment], budget: int) -> None:
        """Lets sequences of the queue run, in its order, while there is room.

        A sequence whose next page another one is computing waits for it. The first one without room ends the search, so
        that large requests are not overtaken forever.
        """
        later: list[SequenceState] = []
        coming = {key for sequence in self.running if (key := self._next_page(sequence)) is not None}
        while budget and len(later) < self.config.max_running:
            sequence = self.queue.first(self.held)
            if sequence is None:
                break
            nodes = self._known(sequence)
            parent = nodes[-1] if nodes else self.base(sequence)
            page = id(parent), self.tree.key(sequence.tokens, len(nodes), sequence.salt)
            waits = page in coming and not sequence.params.prompt_logprobs
            if not waits and not self._has_room(sequence, nodes):
                break
            self.queue.remove(sequence)
            if waits:
                later.append(sequence)
                continue
            self._start(sequence, nodes)
            budget -= self._append(segments, sequence, budget)
            if (key := self._next_page(sequence)) is not None:
                coming.add(key)
        for sequence in later:
            self.queue.push(sequence)

    def _next_page(self, sequence: SequenceState) -> tuple[int, Key] | None:
        """Returns the parent and the tokens of the page that the sequence will share next; None when not known yet."""
        end = (len(sequence.nodes) + 1) * self.size + self.tree.ahead
        if not self.reuses or end > len(sequence.tokens) or sequence.root is None or not self.tree.lives(sequence.root):
            return None
        parent = sequence.nodes[-1] if sequence.nodes else sequence.root
        return id(parent), self.tree.key(sequence.tokens, len(sequence.nodes), sequence.salt)

    def _make_way(self) -> None:
        """Preempts sequences for the next one of the queue, as long as that helps: later ones of lower priority, else
        those of an owner that has more running than its owner would have.
        """
        head = self.queue.first(self.held)
        while head is not None and not self._has_room(head, self._known(head)):
            lower = [each for each in self.running if each.rank > head.rank and each.priority < head.priority]
            victim = max(lower, key=lambda each: each.rank, default=None)
            victim = victim or self._above_share(head, self.held[head.owner] + 1)
            if victim is None:
                return
            self.preempt(victim)

    def _known(self, sequence: SequenceState) -> list[Node]:
        """Returns the nodes of the prefix that a waiting sequence may use: at least its last token is computed."""
        if not self.reuses or sequence.params.prompt_logprobs:
            return []
        limit = (len(sequence.tokens) - 1) // self.size
        return self.tree.match(sequence.tokens, limit, sequence.salt, self.base(sequence))

    def _has_room(self, sequence: SequenceState, nodes: Sequence[Node]) -> bool:
        """Says whether a waiting sequence with this known prefix can start, and each running one grow by a page."""
        there = [node for node in nodes if node.page is not None]
        free = self.pages.free + self.tree.idle - sum(not node.users for node in there)
        needed = self._pages_for(sequence.length) - len(there) + len(self.running)
        return bool(self._slots) and free >= needed

    def _start(self, sequence: SequenceState, nodes: Sequence[Node]) -> None:
        """Gives a sequence a slot and the pages of its prefix; `_has_room` was asked."""
        sequence.slot, sequence.root = self._slots.pop(), self.base(sequence)
        sequence.base = sequence.root
        if sequence.session and self._keeps:
            self._sessions[sequence.salt, sequence.session] = sequence.root
            self._sessions.move_to_end((sequence.salt, sequence.session))
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        self._virtual = max(self._virtual, sequence.rank[0] + sequence.priority * self.config.priority_tokens)
        self.running.append(sequence)
        self.held[sequence.owner] += 1
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
            self.moves.append(Restore(page, record))
            self.counters.restored_pages += 1
            self._hold(sequence, [node])
        sequence.cached = len(sequence.nodes) * self.size
        if sequence.reused is None:
            sequence.reused = min(sequence.cached, sequence.prompt_length)
            sequence.begun = time.monotonic()
            self.counters.prompt_tokens += sequence.prompt_length
            self.counters.cached_tokens += sequence.reused

    def _hold(self, sequence: SequenceState, nodes: Sequence[Node]) -> None:
        self.tree.use(nodes)
        sequence.nodes += nodes
        self._append_pages(sequence, [node.page for node in nodes if node.page is not None])

    def preempt(self, sequence: SequenceState) -> None:
        """Takes the pages of a running sequence, which goes back to its place in the queue."""
        self.release(sequence)
        self.enqueue(sequence)
        self.counters.preemptions += 1

    def release(self, sequence: SequenceState) -> None:
        """Takes slot and pages of a running sequence; what it has filled stays in the tree for others."""
        assert sequence.slot is not None
        assert sequence.root is not None
        self.index(sequence)
        self.tree.release(sequence.nodes, sequence.root)
        self.pages.give(sequence.pages[len(sequence.nodes) :])
        self._slots.append(sequence.slot)
        self.running.remove(sequence)
        self.held[sequence.owner] -= 1
        if not self.held[sequence.owner]:
            del self.held[sequence.owner]
        sequence.slot = sequence.root = None
        sequence.pages, sequence.nodes, sequence.drafts, sequence.cached = [], [], [], 0

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def _spill(self, page: int, ticket: int) -> None:
        self.moves.append(Spill(page, ticket))

    # ---- checking ----------------------------------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """Returns inconsistencies of ownership: each page must be free, in the tree or a sequence's, exactly once."""
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
        held = sum(
            len(sequence.nodes)
            for sequence in self.running
            if sequence.root is not None and self.tree.lives(sequence.root)
        )
        if users != held:
            wrong.append(f"nodes count {users} users, sequences hold {held} of them")
        if self.pages.free != int(self.pages.is_free_P.sum()):
            wrong.append(f"{self.pages.free} pages are counted as free, {int(self.pages.is_free_P.sum())} are")
        idle = sum(not node.users and node.page is not None for node in self.tree.nodes())
        if self.tree.idle != idle:
            wrong.append(f"{self.tree.idle} nodes are counted as idle, {idle} are")
        return wrong
