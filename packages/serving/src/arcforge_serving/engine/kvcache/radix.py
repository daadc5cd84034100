"""Which pages hold which prefixes: a radix tree whose edges are pages of tokens.

A node represents the tokens from the root to it, and owns the page of the last of them. Sequences that use a node count
as its users, on every node of their path. Nodes without users are evicted, the least recently used first and leaves
before what they follow; with a second tier they stay in the tree, and their records in its file.

Each generation of weights has a root of its own. `turn` makes a root and kills the others when the weights change, so
that no prefix is found whose entries other weights have computed: a sequence that continues across the change keeps its
nodes, and adds to the dead root only. `renew` makes a root and leaves the others alive: they are found by those who ask
for them, and by no others.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from arcforge_serving.engine.kvcache.pages import PagePool
from arcforge_serving.engine.kvcache.tier import FileTier

Key = tuple[int | str, ...]
"""The tokens of a page; at the first page of a salted prompt the salt precedes them."""


class Node:
    """A prefix.

    Attributes:
        parent, key: the prefix that it extends, and the tokens of its own page (`RadixTree.key`); None and () at a
            root.
        page: where its entries are; None in the second tier.
        ticket: its record there; None in memory.
        users: sequences that read the page.
        used: time of the last use.
        children: prefixes that extend it.
        resident: how many of them are in memory.
    """

    __slots__ = ("children", "key", "page", "parent", "resident", "ticket", "used", "users")

    def __init__(self, parent: Node | None = None, key: Key = (), page: int | None = None) -> None:
        self.parent, self.key, self.page = parent, key, page
        self.ticket: int | None = None
        self.users = self.used = self.resident = 0
        self.children: dict[Key, Node] = {}


class RadixTree:
    """The tree.

    Args:
        pages: owns the pages that the tree gives back.
        page_size: tokens of a page.
        tier: where evicted pages go; None forgets them.
        spill: called with (page, ticket) when a page's record is to be written to the tier.
        ahead: number of tokens after a page that its entries depend on; they are part of its key.
    """

    def __init__(
        self,
        pages: PagePool,
        page_size: int,
        tier: FileTier | None = None,
        spill: Callable[[int, int], None] | None = None,
        ahead: int = 0,
    ) -> None:
        self.pages, self.page_size, self.tier, self.spill, self.ahead = pages, page_size, tier, spill, ahead
        self.root = Node()
        self._older: dict[int, Node] = {}  # live roots of earlier generations, by id
        self.idle = 0  # nodes in memory without users: pages that can be had by eviction
        self.evicted = 0
        self._clock, self._order = itertools.count(1), itertools.count()
        self._leaves: list[tuple[int, int, Node]] = []  # candidates for eviction; checked when they are taken
        self._records: list[tuple[int, int, Node]] = []  # the same for records

    # ---- finding and using -------------------------------------------------------------------------------------------

    def match(self, tokens: Sequence[int], limit: int, salt: str = "", root: Node | None = None) -> list[Node]:
        """Returns the nodes of the longest known prefix of `tokens`, of at most `limit` pages, with the same salt.

        Args:
            tokens: that may be known.
            limit: pages.
            salt: of the prompt.
            root: of the generation in which to look; the present one if None.
        """
        nodes: list[Node] = []
        node = root or self.root
        for number in range(limit):
            child = node.children.get(self.key(tokens, number, salt))
            if child is None:
                break
            nodes.append(child)
            node = child
        return nodes

    def key(self, tokens: Sequence[int], number: int, salt: str = "") -> Key:
        """Returns the key of a sequence's page; it is shorter than others where the tokens are not all known.

        Prompts of different salts share no page: all pages follow from the first, whose key contains the salt.
        """
        start = number * self.page_size
        known = tuple(tokens[start : start + self.page_size + self.ahead])
        return (salt, *known) if salt and not number else known

    def use(self, nodes: Sequence[Node]) -> None:
        """Counts a user of these nodes."""
        now = next(self._clock)
        for node in nodes:
            self.idle -= node.users == 0 and node.page is not None
            node.users += 1
            node.used = now

    def release(self, nodes: Sequence[Node], root: Node) -> None:
        """Removes a user of a path that began at `root`. Nodes below a dead root are dropped immediately."""
        for node in reversed(nodes):
            node.users -= 1
            if node.users == 0:
                self.idle += 1
                if not self.lives(root) and not node.children:
                    self.forget(node)
                else:
                    self._offer(node)

    def add(self, parent: Node, key: Key, page: int) -> Node:
        """Returns the node of a page that a sequence has filled, with that sequence as its user.

        Where that prefix is known already, its own page is kept and `page` goes back.
        """
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = Node(parent, key, page)
            parent.resident += 1
            self.idle += 1
        elif node.page is None:
            self._adopt(node, page)
        else:
            self.pages.give([page])
        self.use([node])
        return node

    # ---- eviction and the second tier --------------------------------------------------------------------------------

    def evict(self, count: int) -> None:
        """Frees pages of nodes without users until `count` are free, or none is left."""
        while self.pages.free < count and self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            if not self._can_go(used, node):
                continue
            assert node.page is not None
            self.evicted += 1
            if self.tier is not None and self.spill is not None and self._make_record(self.tier):
                node.ticket = self.tier.take()
                self.spill(node.page, node.ticket)
                self._leave_memory(node)
                self._offer_record(node)
            else:
                self.forget(node)

    def record(self, node: Node) -> Tensor | None:
        """Returns the record of a node in the second tier, None when it cannot be used."""
        assert self.tier is not None
        assert node.ticket is not None
        return self.tier.read(node.ticket)

    def restore(self, node: Node, page: int) -> None:
        """Gives a node of the second tier a page, which the caller fills from its record."""
        self._adopt(node, page)

    def forget(self, node: Node) -> None:
        """Removes a node without users, and what follows from it in the second tier."""
        for each in list(walk(node))[::-1]:  # what follows from a node comes before it
            self._remove(each)

    def turn(self) -> None:
        """Replaces all roots by a new one: no known prefix is found again, and unused pages are freed."""
        dead, self.root, self._older = [*self._older.values(), self.root], Node(), {}
        for root in dead:
            for node in list(walk(root))[::-1]:
                if node is not root and not node.users:
                    self._remove(node)

    def renew(self) -> None:
        """Makes another root; earlier ones live as long as pages lie below them."""
        self._older[id(self.root)], self.root = self.root, Node()
        self._older = {key: root for key, root in self._older.items() if root.children}

    def lives(self, root: Node) -> bool:
        """Whether prefixes below a root can be found."""
        return root is self.root or id(root) in self._older

    def _adopt(self, node: Node, page: int) -> None:
        assert self.tier is not None
        assert node.ticket is not None
        self.tier.give(node.ticket)
        node.page, node.ticket = page, None
        self.idle += 1
        assert node.parent is not None
        node.parent.resident += 1

    def _leave_memory(self, node: Node) -> None:
        assert node.page is not None
        assert node.parent is not None
        self.pages.give([node.page])
        node.page = None
        self.idle -= 1
        node.parent.resident -= 1
        self._offer(node.parent)

    def _remove(self, node: Node) -> None:
        if node.page is not None:
            self._leave_memory(node)
        if node.ticket is not None:
            assert self.tier is not None
            self.tier.give(node.ticket)
            node.ticket = None
        assert node.parent is not None
        del node.parent.children[node.key]
        self._offer_record(node.parent)

    def _offer(self, node: Node) -> None:
        if node.parent is not None and not node.users and not node.resident and node.page is not None:
            heapq.heappush(self._leaves, (node.used, next(self._order), node))
            if len(self._leaves) > 4 * self.pages.count + 64:  # nothing is evicted: drop what was used since
                self._leaves = [entry for entry in self._leaves if self._can_go(entry[0], entry[2])]
                heapq.heapify(self._leaves)

    @staticmethod
    def _can_go(used: int, node: Node) -> bool:
        """Says whether a candidate is one still: not used, extended or evicted since."""
        return used == node.used and not node.users and not node.resident and node.page is not None

    def _offer_record(self, node: Node) -> None:
        if node.ticket is not None and not node.children:
            heapq.heappush(self._records, (node.used, next(self._order), node))
            if self.tier is not None and len(self._records) > 4 * self.tier.count + 64:
                self._records = [entry for entry in self._records if self._may_be_forgotten(entry[0], entry[2])]
                heapq.heapify(self._records)

    @staticmethod
    def _may_be_forgotten(used: int, node: Node) -> bool:
        """The same of candidates for making room in the second tier."""
        return used == node.used and node.ticket is not None and not node.children

    def _make_record(self, tier: FileTier) -> bool:
        """Says whether the second tier has a free record, after forgetting the least recently used one if need be."""
        while not tier.free and self._records:
            used, _, node = heapq.heappop(self._records)
            if self._may_be_forgotten(used, node):
                self.forget(node)
        return tier.free > 0

    # ---- checking ----------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """Yields every node that can be found, without the roots."""
        return (node for root in (self.root, *self._older.values()) for node in walk(root) if node is not root)


def walk(root: Node) -> Iterator[Node]:
    """Yields a node and all that follow from it, each before those that follow from it."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children.values()
