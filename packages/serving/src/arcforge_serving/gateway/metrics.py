"""Figures of a gateway's sessions on the server's page of metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from arcforge_serving.gateway.sessions import Sessions
from arcforge_serving.server.shared.metrics import LABEL, PREFIX


class SessionCollector(Collector):
    """Reads the figures whenever the page is rendered."""

    def __init__(self, sessions: Sessions, name: str) -> None:
        self.sessions, self.name = sessions, name

    def collect(self) -> Iterator[Metric]:
        """Yields gauges and counters."""
        opened = GaugeMetricFamily(f"{PREFIX}gateway_sessions", "Open sessions", labels=[LABEL])
        opened.add_metric([self.name], len(self.sessions))
        yield opened
        lost = CounterMetricFamily(f"{PREFIX}gateway_log_failures", "Lines not written to disk", labels=[LABEL])
        lost.add_metric([self.name], self.sessions.log_failures)
        yield lost
