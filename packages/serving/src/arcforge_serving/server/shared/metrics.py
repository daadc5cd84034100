"""Prometheus metrics under the names of vLLM, with the prefix ``arcforge:``; a registry per application."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.contracts.serving_engine import EngineStats, ServingEngine

PREFIX = "arcforge:"
LABEL = "model_name"
OPEN_METRICS = "application/openmetrics-text"


def doubling(first: float, count: int) -> tuple[float, ...]:
    """Returns bucket bounds, each twice the previous one."""
    return tuple(first * 2**power for power in range(count))


TO_TOKEN, TO_REQUEST = doubling(0.001, 16), doubling(0.01, 18)
"""Seconds: 1 ms to 33 s, and 10 ms to 22 min."""


class Metrics:
    """Counts and times of a server's requests, next to the figures of its engine.

    Args:
        engine: whose figures are read whenever the page is rendered.
        name: of the model.
    """

    def __init__(self, engine: ServingEngine, name: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine, name))
        self._name = name
        self._first_token = self._histogram("time_to_first_token_seconds", "Request to its first token", TO_REQUEST)
        self._between = self._histogram("inter_token_latency_seconds", "One token to the next", TO_TOKEN)
        self._whole = self._histogram("e2e_request_latency_seconds", "Request to its end", TO_REQUEST)
        self._queue = self._histogram("request_queue_time_seconds", "Request to its first step", TO_REQUEST)
        self._success = Counter(
            f"{PREFIX}request_success", "Sequences that ended", [LABEL, "finished_reason"], registry=self.registry
        )
        self._answers = Counter(
            f"{PREFIX}http_requests", "Requests by route and status; 499: the client disconnected",
            [LABEL, "path", "status"], registry=self.registry,
        )  # fmt: skip
        self._ignored = Counter(
            f"{PREFIX}ignored_fields", "Requests with a field that has no effect; *: a name unknown here",
            [LABEL, "field"], registry=self.registry,
        )  # fmt: skip
        self._updates = Histogram(
            f"{PREFIX}rl_weight_update_operation_duration_seconds", "Updates of the weights",
            [LABEL, "operation", "outcome"], buckets=TO_REQUEST, registry=self.registry,
        )  # fmt: skip

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"{PREFIX}{name}", what, [LABEL], buckets=buckets, registry=self.registry)
        return histogram.labels(self._name)

    # ---- events ------------------------------------------------------------------------------------------------------

    def received(self, tokens: int, seconds: float, first: bool) -> None:
        """Counts tokens that arrived `seconds` after the request (`first`) or the previous tokens, which they share."""
        if first:
            self._first_token.observe(seconds)
            return
        for _ in range(tokens):
            self._between.observe(seconds / tokens)

    def finished(self, reason: str, seconds: float, output: GenerationOutput | None) -> None:
        """Counts a sequence that ended `seconds` after the request: ``stop``, ``length``, ``abort`` or ``error``."""
        self._success.labels(self._name, reason).inc()
        self._whole.observe(seconds)
        if output is not None:
            self._queue.observe(output.queue_seconds)

    def answered(self, path: str, status: int) -> None:
        """Counts an HTTP response."""
        self._answers.labels(self._name, path, str(status)).inc()

    def ignored(self, field: str) -> None:
        """Counts a request with a field that has no effect."""
        self._ignored.labels(self._name, field).inc()

    def updated(self, operation: str, outcome: str, seconds: float) -> None:
        """Counts a weight update that was ``done`` or ``refused``."""
        self._updates.labels(self._name, operation, outcome).observe(seconds)

    # ---- the page ----------------------------------------------------------------------------------------------------

    def page(self, accept: str) -> tuple[bytes, str]:
        """Returns the page and its content type; see `page_of`."""
        return page_of(self.registry, accept)


def page_of(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Returns the page of a registry and its content type: OpenMetrics if an ``Accept`` header prefers it, else text.

    Names are written as they are; `prometheus_client` would replace their colon in samples alone.
    """
    weights: dict[str, float] = {}
    for part in accept.split(","):
        kind, *options = (each.strip() for each in part.split(";"))
        given = next((option[2:] for option in options if option.startswith("q=")), "1")
        weights[kind] = max(weights.get(kind, 0.0), float(given) if given.replace(".", "", 1).isdecimal() else 0.0)
    if weights.get(OPEN_METRICS, 0.0) > 0 and weights[OPEN_METRICS] >= weights.get("text/plain", 0.0):
        page = openmetrics.generate_latest(registry, escaping=openmetrics.ALLOWUTF8)
        return page, f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class EngineCollector(Collector):
    """The engine's own figures, read whenever the page is rendered."""

    def __init__(self, engine: ServingEngine, name: str) -> None:
        self.engine, self.name = engine, name

    def collect(self) -> Iterator[Metric]:
        """Yields gauges and counters."""
        stats = self.engine.stats()
        for metric, what, value in gauges(stats):
            gauge = GaugeMetricFamily(f"{PREFIX}{metric}", what, labels=[LABEL])
            gauge.add_metric([self.name], value)
            yield gauge
        for metric, what, value in counters(stats):
            counter = CounterMetricFamily(f"{PREFIX}{metric}", what, labels=[LABEL])
            counter.add_metric([self.name], value)
            yield counter
        accepted = CounterMetricFamily(
            f"{PREFIX}spec_decode_num_accepted_tokens_per_pos", "Drafts accepted", labels=[LABEL, "position"]
        )
        for position, times in enumerate(stats.accepted_by_position):
            accepted.add_metric([self.name, str(position)], times)
        yield accepted


Figures = list[tuple[str, str, float]]


def gauges(stats: EngineStats) -> Figures:
    """Returns names, descriptions and values of the gauges."""
    used, pages = stats.pages - stats.free_pages - stats.cached_pages, max(stats.pages, 1)
    return [
        ("num_requests_running", "Sequences being generated", stats.running),
        ("num_requests_waiting", "Sequences in the queue", stats.waiting),
        ("kv_cache_usage_perc", "Share of pages held by running sequences alone; 1 is all", used / pages),
        (
            "kv_cache_shared_perc",
            "Share of pages of the prefix tree, in use or kept",
            stats.cached_pages / pages,
        ),
        ("weight_version", "Version of the weights", stats.weight_version),
        ("paused", "Whether the engine is paused", float(stats.paused)),
    ]


def counters(stats: EngineStats) -> Figures:
    """Returns names, descriptions and values of the counters."""
    reuses = stats.prefix_reuse == "on"
    return [
        ("prompt_tokens", "Tokens of prompts", stats.prompt_tokens),
        ("generation_tokens", "Tokens generated", stats.generated_tokens),
        ("prefix_cache_queries", "Tokens looked up in the prefix cache", stats.prompt_tokens if reuses else 0),
        ("prefix_cache_hits", "Tokens found there", stats.cached_tokens),
        ("num_preemptions", "Preempted sequences", stats.preemptions),
        ("engine_steps", "Steps computed", stats.steps),
        ("engine_busy_seconds", "Seconds in which steps were computed", stats.busy_seconds),
        ("spec_decode_num_drafts", "Verifications of a sequence's drafts", stats.drafts),
        ("spec_decode_num_draft_tokens", "Drafts verified", stats.draft_tokens),
        ("spec_decode_num_accepted_tokens", "Drafts accepted", sum(stats.accepted_by_position)),
    ]
