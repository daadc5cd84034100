"""Pages of prompts from and for other processes (prefill/decode disaggregation)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile

from torch import Tensor

from arcforge_serving.engine.driver import Driver
from arcforge_serving.engine.kvcache.radix import Node
from arcforge_serving.engine.loop import StepLoop


class PageExchange:
    """Reads and writes the pages of the prefix cache, between two steps.

    A page is named by the prompt that it belongs to, the prompt's salt, and its number there. Its record is uint8 on
    the host, see `PageStore.read`. The last token of a prompt is in no record: the engine that decodes computes it.

    Args:
        loop: of the engine.
        driver: has the cache.
    """

    def __init__(self, loop: StepLoop, driver: Driver) -> None:
        self._loop, self._driver = loop, driver
        self._tree, self._pages, self._store = driver.scheduler.tree, driver.scheduler.pages, driver.store

    def count(self, tokens: Sequence[int], salt: str = "") -> int:
        """Returns how many pages of a prompt are in memory."""
        return len(self._in_memory(tokens, salt))

    def export(self, tokens: Sequence[int], first: int, salt: str = "") -> tuple[int, list[Tensor]]:
        """Returns the weight version, and the records of a prompt's pages in memory from number `first` on."""
        return self._loop.between_steps(partial(self._export, tokens, first, salt))

    def insert(self, tokens: Sequence[int], first: int, version: int, records: Sequence[Tensor], salt: str = "") -> int:
        """Adds a prompt's pages, from number `first` on, to the prefix cache.

        Args:
            tokens: ids of the prompt.
            first: number of the first page; those before it must still be in memory.
            version: of the weights that computed them; pages of other weights are not added.
            records: see `export`.
            salt: of the prompt.

        Returns:
            How many were added: those that were missing, as far as there was room.
        """
        return self._loop.between_steps(partial(self._insert, tokens, first, version, records, salt))

    def _export(self, tokens: Sequence[int], first: int, salt: str) -> tuple[int, list[Tensor]]:
        self._driver.worker.catch_up()
        pages = [node.page for node in self._in_memory(tokens, salt)[first:]]
        return self._driver.weight_version, [self._store.read(page) for page in pages if page is not None]

    def _insert(self, tokens: Sequence[int], first: int, version: int, records: Sequence[Tensor], salt: str) -> int:
        tree, pages = self._tree, self._pages
        nodes = self._in_memory(tokens, salt)
        known = len(nodes)
        if version != self._driver.weight_version or known < first:
            return 0
        self._driver.worker.catch_up()
        root = tree.root
        tree.use(nodes)
        for number in range(known, first + len(records)):
            tree.evict(1)
            if not pages.free:
                break
            (page,) = pages.take(1, nodes[-1].page if nodes else None)
            self._store.write(page, records[number - first])
            nodes.append(tree.add(nodes[-1] if nodes else root, tree.key(tokens, number, salt), page))
        tree.release(nodes, root)
        return len(nodes) - known

    def _in_memory(self, tokens: Sequence[int], salt: str) -> list[Node]:
        nodes = self._tree.match(tokens, (len(tokens) - 1) // self._tree.page_size, salt)
        return list(takewhile(lambda node: node.page is not None, nodes))
