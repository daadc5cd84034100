"""The two roles: an engine that computes prompts for others, and what asks it before a request is queued."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_serving.disaggregation.contract import Asked, Connector, Pages, TransferError, whole_pages
from arcforge_serving.errors import ClosedError
from arcforge_serving.paged import PagedEngine


def check_pages(engine: PagedEngine) -> None:
    """Refuses an engine whose pages do not hold all that follows from a prompt.

    Raises:
        ConfigError: says why.
    """
    if engine.driver.prefix_reuse != "on":
        raise ConfigError("prefill", "given", f"needs shared prefixes, which are {engine.driver.prefix_reuse}")


class PrefillRole:
    """Computes prompts; a `Prefill`.

    Args:
        engine: was started.

    Raises:
        ConfigError: its pages cannot be handed on.
    """

    def __init__(self, engine: PagedEngine) -> None:
        check_pages(engine)
        self._engine = engine

    def pages(self, asked: Asked) -> Pages:
        """Computes what is not known of a prompt and returns its pages; see `Prefill`."""
        if asked.page_bytes != self._engine.store.page_bytes:
            sizes = f"{self._engine.store.page_bytes} bytes, {asked.page_bytes} are asked for"
            raise TransferError(f"a page has {sizes}")
        try:
            params = SamplingParams(max_new_tokens=1, temperature=0.0)
            (stream,) = self._engine.submit(asked.tokens, params)
            stream.result()
            version, records = self._engine.export_pages(asked.tokens, asked.first)
        except (ArcforgeError, RuntimeError) as error:  # this prompt's, or a step's
            raise TransferError(str(error)) from error
        if version != asked.version:
            raise TransferError(f"the weights have version {version}, {asked.version} is asked for")
        return Pages(asked.first, version, records)


class LocalConnector:
    """Pages from an engine of this process; a `Connector`."""

    def __init__(self, role: PrefillRole) -> None:
        self._role = role

    def fetch(self, asked: Asked) -> Pages:
        """Computes them."""
        return self._role.pages(asked)

    def close(self) -> None:
        """Holds nothing."""


@dataclass
class Moved:
    """What has come.

    Attributes:
        bytes, tokens: that came.
        pages: that were put into the cache.
        fetches, failures: how often pages were asked for, and did not come.
    """

    bytes: int = 0
    tokens: int = 0
    pages: int = 0
    fetches: int = 0
    failures: int = 0


class DecodeRole:
    """Has prompts computed elsewhere before they are queued.

    Where pages do not come, it asks again, and then the engine computes them itself: what is lost is time.

    Args:
        engine: is given the pages; one that is shared by all requests of a process.
        connector: where they come from.
        tries: how often a prompt is asked for.
        threads: prompts that are asked for at a time.

    Attributes:
        moved: what has come.

    Raises:
        ConfigError: the engine's pages cannot be taken.
    """

    def __init__(self, engine: PagedEngine, connector: Connector, tries: int = 2, threads: int = 16) -> None:
        check_pages(engine)
        self._engine, self._connector, self._tries = engine, connector, tries
        self._executor = ThreadPoolExecutor(threads, "arcforge-prefill")
        self.moved, self._lock = Moved(), threading.Lock()

    def begin(self, tokens: Sequence[int], arrive: Callable[[], None], wait: bool) -> None:
        """Gets a prompt's pages, then calls `arrive`, whatever came; in a thread, unless it is to be waited for."""
        if wait:
            self._run(tuple(tokens), arrive)
        else:
            self._executor.submit(self._run, tuple(tokens), arrive)

    def close(self) -> None:
        """Asks for nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._connector.close()

    def _run(self, tokens: tuple[int, ...], arrive: Callable[[], None]) -> None:
        try:
            for _ in range(self._tries):
                if self._try(tokens):
                    break
        except ClosedError:
            return  # which has ended the request
        finally:
            arrive()

    def _try(self, tokens: tuple[int, ...]) -> bool:
        """Returns whether all is there that can be."""
        engine, moved = self._engine, self.moved
        size, version = engine.config.page_size, engine.weight_version
        first = engine.known_pages(tokens)
        if first == whole_pages(tokens, size):
            return True
        try:
            pages = self._connector.fetch(Asked(tokens, first, version, engine.store.page_bytes))
        except TransferError:
            with self._lock:
                moved.fetches += 1
                moved.failures += 1
            return False
        put = engine.import_pages(tokens, pages.first, pages.version, pages.records)
        with self._lock:
            moved.fetches += 1
            moved.bytes += sum(record.nbytes for record in pages.records)
            moved.tokens += size * len(pages.records)
            moved.pages += put
        return True
