"""``/metrics`` of all engines: their own figures, each with the label ``engine``, and the router's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import httpx
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from arcforge_serving.router.fleet import Fleet, Member, State
from arcforge_serving.router.relay import Counts
from arcforge_serving.server.shared.metrics import page_of

PREFIX = "arcforge:router_"
SECONDS = 5.0
"""Engines that take longer are left out."""
KEPT = ("authorization", "x-api-key")


async def pages(fleet: Fleet, headers: Iterable[tuple[str, str]]) -> dict[str, str] | httpx.Response:
    """Returns each engine's page in Prometheus' text format, or what one refuses the client with."""
    keys = {name: value for name, value in headers if name in KEPT}

    async def ask(member: Member) -> httpx.Response | None:
        try:
            assert member.http is not None
            return await member.http.get("/metrics", headers={**keys, "accept": "text/plain"}, timeout=SECONDS)
        except httpx.TransportError:
            return None

    members = fleet.present
    answers = await asyncio.gather(*(ask(member) for member in members))
    found = {}
    for member, answer in zip(members, answers, strict=True):
        if answer is not None and answer.status_code != 200:
            return answer
        if answer is not None:
            found[member.name] = answer.text
    return found


def page(fleet: Fleet, counts: Counts, texts: dict[str, str], accept: str) -> tuple[bytes, str]:
    """Returns one page for all, and its content type, in the format that the header ``Accept`` prefers."""
    registry = CollectorRegistry()
    registry.register(Together(texts))
    registry.register(Own(fleet, counts))
    return page_of(registry, accept)


class Together(Collector):
    """The engines' pages, concatenated by metric family."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def describe(self) -> Iterable[Metric]:
        """Says nothing ahead of `collect`."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Returns the families, each sample with its engine."""
        families: dict[str, Metric] = {}
        for engine, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                if family.name.endswith("_created"):  # of a counter; OpenMetrics allows no family of that name
                    continue
                whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                whole.samples += [
                    sample._replace(labels={**sample.labels, "engine": engine}) for sample in family.samples
                ]
        yield from families.values()


class Own(Collector):
    """The router's figures."""

    def __init__(self, fleet: Fleet, counts: Counts) -> None:
        self._fleet, self._counts = fleet, counts

    def describe(self) -> Iterable[Metric]:
        """Says nothing ahead of `collect`."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Returns gauges and counters."""
        up = GaugeMetricFamily(f"{PREFIX}engine_up", "Whether the engine takes requests", labels=["engine"])
        flight = GaugeMetricFamily(f"{PREFIX}in_flight", "Requests that it has", labels=["engine"])
        lives = CounterMetricFamily(f"{PREFIX}engine_restarts", "Restarts", labels=["engine"])
        for member in self._fleet.members:
            up.add_metric([member.name], float(member.state is State.READY))
            flight.add_metric([member.name], member.in_flight)
            lives.add_metric([member.name], member.restarts)
        requests = CounterMetricFamily(f"{PREFIX}requests", "Requests sent to it", labels=["engine", "outcome"])
        for (engine, outcome), times in self._counts.requests.items():
            requests.add_metric([engine, outcome], times)
        yield from (up, flight, lives, requests)
        moves = self._fleet.policy.moves
        yield CounterMetricFamily(f"{PREFIX}session_moves", "Sessions that left a full engine", moves)
        yield CounterMetricFamily(f"{PREFIX}retries", "Requests tried on another engine", self._counts.retries)
        yield CounterMetricFamily(f"{PREFIX}refused", "Requests without any engine", self._counts.refused)
        yield CounterMetricFamily(f"{PREFIX}limited", "Requests beyond a key's rate", self._counts.limited)
