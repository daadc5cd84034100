"""How many rollouts run at a time, from the use of the engine's cache."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.contracts.serving_engine import EngineStats

GROW, TRIM, CANCEL = 0.6, 0.8, 0.9
"""Below the first share of pages in use more rollouts run; above the second fewer; above the third the youngest are
cancelled."""
FASTER, SLOWER, YOUNGEST = 0.25, 0.05, 0.1
"""Shares of the rollouts by which their number grows and shrinks, and that are cancelled, each time."""


def cache_use(stats: EngineStats) -> float:
    """Returns the share of pages that sequences own; pages of the prefix tree can be evicted."""
    return 0.0 if not stats.pages else 1.0 - (stats.free_pages + stats.cached_pages) / stats.pages


@dataclass
class CacheControl:
    """Adapts the number of rollouts that run.

    Attributes:
        most: upper bound.
        limit: present number.
        use: of the cache, when it was observed last.
        preemptions: of the engine until then.
    """

    most: int
    limit: int
    use: float = 0.0
    preemptions: int = 0

    def observe(self, stats: EngineStats, running: int) -> int:
        """Changes `limit`; returns how many of the `running` rollouts to cancel, the youngest.

        A preemption shows that the cache was full between two observations, so it counts as use above `TRIM`.
        """
        preempted = stats.preemptions > self.preemptions
        self.use, self.preemptions = cache_use(stats), stats.preemptions
        if self.use > CANCEL and running > 1:
            youngest = min(running - 1, max(1, int(running * YOUNGEST)))
            self.limit = running - youngest
            return youngest
        if self.use > TRIM or preempted:
            now = min(self.limit, max(1, running))
            self.limit = max(1, now - max(1, int(now * SLOWER)))
        elif self.use < GROW and running >= self.limit:
            self.limit = min(self.most, self.limit + max(1, int(self.limit * FASTER)))
        return 0
