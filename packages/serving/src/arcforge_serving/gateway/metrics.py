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
        sessions, memories = self.sessions, self.sessions.memories
        gauges = (
            ("gateway_sessions", "Open sessions", len(sessions)),
            ("gateway_recorded_tokens", "Tokens of the open sessions", sessions.recorded),
            ("gateway_memory_bytes", "Parsed parts of clients' histories that are kept", memories.bytes),
            ("gateway_replies_bytes", "Replies that are kept, for repeated requests or as stored", sessions.kept.bytes),
        )
        for name, what, value in gauges:
            gauge = GaugeMetricFamily(f"{PREFIX}{name}", what, labels=[LABEL])
            gauge.add_metric([self.name], value)
            yield gauge
        counters = (
            ("gateway_memory_forgotten", "Parsed parts that made room for others", memories.forgotten),
            ("gateway_replies_forgotten", "Replies that made room for others", sessions.kept.forgotten),
            ("gateway_log_failures", "Lines not written to disk", sessions.log_failures),
        )
        for name, what, value in counters:
            counter = CounterMetricFamily(f"{PREFIX}{name}", what, labels=[LABEL])
            counter.add_metric([self.name], value)
            yield counter
