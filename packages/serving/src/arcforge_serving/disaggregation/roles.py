"""The two roles: an engine that computes prompts for others, and one that fetches their pages before it decodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_serving.disaggregation.contract import PageRecords, PageRequest, TransferError, whole_pages
from arcforge_serving.disaggregation.tcp import TcpConnector
from arcforge_serving.engine.errors import ClosedError
from arcforge_serving.engine.paged import PagedEngine


def check_pages(engine: PagedEngine) -> None:
    """Refuses an engine whose pages do not hold everything that decoding needs of a prompt.

    Raises:
        ConfigError: says why.
    """
    if engine.driver.prefix_reuse != "on":
        raise ConfigError("prefill", "given", f"needs shared prefixes, which are {engine.driver.prefix_reuse}")


class PrefillRole:
    """Computes prompts for decode roles.

    Args:
        engine: was started.

    Raises:
        ConfigError: its pages cannot be used elsewhere.
    """

    def __init__(self, engine: PagedEngine) -> None:
        check_pages(engine)
        self._engine = engine

    def pages(self, request: PageRequest) -> PageRecords:
        """Computes the missing pages of a prompt and returns them.

        Raises:
            TransferError: the engine has other weights or pages of another size, or cannot compute.
        """
        if request.page_bytes != self._engine.store.page_bytes:
            sizes = f"{self._engine.store.page_bytes} bytes, {request.page_bytes} are requested"
            raise TransferError(f"a page has {sizes}")
        try:
            params = SamplingParams(max_new_tokens=1, temperature=0.0)
            (stream,) = self._engine.submit(request.tokens, params, salt=request.salt)
            stream.result()
            version, records = self._engine.exchange.export(request.tokens, request.first, request.salt)
        except (ArcforgeError, RuntimeError) as error:  # of this prompt, or of a step
            raise TransferError(str(error)) from error
        if version != request.version:
            raise TransferError(f"the weights have version {version}, {request.version} is requested")
        return PageRecords(request.first, version, records)


@dataclass
class TransferStats:
    """Counts of a decode role.

    Attributes:
        bytes, tokens: received.
        pages: added to the cache.
        fetches, failures: how often pages were requested, and did not arrive.
    """

    bytes: int = 0
    tokens: int = 0
    pages: int = 0
    fetches: int = 0
    failures: int = 0


class DecodeRole:
    """Has prompts computed by prefill roles before they are queued.

    If the pages do not arrive, it tries again; after that, its own engine computes the prompt, and only time is lost.

    Args:
        engine: receives the pages.
        connector: fetches them.
        tries: how often a prompt is requested.
        threads: prompts that are requested at a time.

    Attributes:
        stats: counts so far.

    Raises:
        ConfigError: the engine cannot use the pages of another engine.
    """

    def __init__(self, engine: PagedEngine, connector: TcpConnector, tries: int = 2, threads: int = 16) -> None:
        check_pages(engine)
        self._engine, self._connector, self._tries = engine, connector, tries
        self._executor = ThreadPoolExecutor(threads, "arcforge-prefill")
        self.stats, self._lock = TransferStats(), threading.Lock()

    def begin(self, tokens: Sequence[int], then: Callable[[], None], wait: bool, salt: str = "") -> None:
        """Fetches the pages of a prompt, then calls `then` in any case; with `wait`, before it returns."""
        if wait:
            self._run(tuple(tokens), then, salt)
        else:
            self._executor.submit(self._run, tuple(tokens), then, salt)

    def close(self) -> None:
        """Requests nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._connector.close()

    def _run(self, tokens: tuple[int, ...], then: Callable[[], None], salt: str) -> None:
        try:
            for _ in range(self._tries):
                if self._fetch(tokens, salt):
                    break
        except ClosedError:
            return  # the engine has ended the request
        finally:
            then()

    def _fetch(self, tokens: tuple[int, ...], salt: str) -> bool:
        """Adds the missing pages of a prompt to the cache; returns False if they did not arrive."""
        engine, stats = self._engine, self.stats
        size, version = engine.config.page_size, engine.weight_version
        first = engine.exchange.count(tokens, salt)
        if first == whole_pages(tokens, size):
            return True
        try:
            pages = self._connector.fetch(PageRequest(tokens, first, version, engine.store.page_bytes, salt))
        except TransferError:
            with self._lock:
                stats.fetches += 1
                stats.failures += 1
            return False
        added = engine.exchange.insert(tokens, pages.first, pages.version, pages.records, salt)
        with self._lock:
            stats.fetches += 1
            stats.bytes += sum(record.nbytes for record in pages.records)
            stats.tokens += size * len(pages.records)
            stats.pages += added
        return True
