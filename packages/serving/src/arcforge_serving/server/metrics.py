"""Prometheus metrics under the names of vLLM, with the prefix ``arcforge:``; a registry per application."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from arcforge_core.contracts.engine import GenerationOutput
from arcforge_serving.paged import PagedEngine, Stats
from arcforge_serving.server.guard import GuardedRoute

PREFIX = "arcforge:"
LABEL = "model_name"


def doubling(first: float, count: int) -> tuple[float, ...]:
    """Returns bounds of buckets, each twice the one before."""
    return tuple(first * 2**power for power in range(count))


TO_TOKEN, TO_REQUEST = doubling(0.001, 16), doubling(0.01, 18)
"""Seconds: 1 ms to 33 s, and 10 ms to 22 min."""


class Metrics:
    """What an application counts; an `Observer` of its requests.

    Args:
        engine: whose figures are read when they are asked for.
        name: the model's.
    """

    def __init__(self, engine: PagedEngine, name: str) -> None:
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
            f"{PREFIX}http_requests", "Requests by route and status; 499 are those whose clients went away",
            [LABEL, "path", "status"], registry=self.registry,
        )  # fmt: skip
        self._updates = Histogram(
            f"{PREFIX}rl_weight_update_operation_duration_seconds", "Updates of the weights",
            [LABEL, "operation", "outcome"], buckets=TO_REQUEST, registry=self.registry,
        )  # fmt: skip

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"{PREFIX}{name}", what, [LABEL], buckets=buckets, registry=self.registry)
        return histogram.labels(self._name)

    # ---- what happens ------------------------------------------------------------------------------------------------

    def submitted(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """A sequence was handed to the engine, which counts it itself."""

    def received(self, tokens: int, seconds: float, first: bool) -> None:
        """Tokens came; several at a time share what passed since those before."""
        if first:
            self._first_token.observe(seconds)
            return
        for _ in range(tokens):
            self._between.observe(seconds / tokens)

    def finished(self, reason: str, seconds: float, output: GenerationOutput | None) -> None:
        """A sequence ended."""
        self._success.labels(self._name, reason).inc()
        self._whole.observe(seconds)
        if output is not None:
            self._queue.observe(output.queue_seconds)

    def answered(self, path: str, status: int) -> None:
        """A request was answered."""
        self._answers.labels(self._name, path, str(status)).inc()

    def updated(self, operation: str, outcome: str, seconds: float) -> None:
        """Weights were replaced (``done``), or not (``refused``)."""
        self._updates.labels(self._name, operation, outcome).observe(seconds)

    # ---- what is shown -----------------------------------------------------------------------------------------------

    def page(self, accept: str) -> tuple[bytes, str]:
        """Returns the page and its content type, in the format that the header ``Accept`` prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def metrics_route(metrics: Metrics) -> APIRouter:
    """Returns ``/metrics``."""
    router = APIRouter(route_class=GuardedRoute)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def show(request: Request) -> Response:
        """Shows what was counted, for Prometheus."""
        content, content_type = metrics.page(request.headers.get("accept", ""))
        return Response(content, media_type=content_type)

    return router


class EngineCollector(Collector):
    """The engine's own figures, at the moment when they are asked for."""

    def __init__(self, engine: PagedEngine, name: str) -> None:
        self.engine, self.name = engine, name

    def collect(self) -> Iterator[Metric]:
        """Returns gauges and counters."""
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


def gauges(stats: Stats) -> Figures:
    """Returns names, descriptions and values of what goes up and down."""
    used = stats.pages - stats.free_pages - stats.cached_pages
    return [
        ("num_requests_running", "Sequences that are generated", stats.running),
        ("num_requests_waiting", "Sequences in the queue", stats.waiting),
        ("kv_cache_usage_perc", "Share of pages that running sequences hold alone; 1 is all", used / stats.pages),
        ("kv_cache_shared_perc", "Share of pages of the prefix tree, in use or kept", stats.cached_pages / stats.pages),
        ("weight_version", "Version of the weights", stats.weight_version),
        ("paused", "Whether the engine stands still", float(stats.paused)),
    ]


def counters(stats: Stats) -> Figures:
    """Returns names, descriptions and values of what only goes up."""
    reuses = stats.prefix_reuse == "on"
    return [
        ("prompt_tokens", "Tokens of prompts", stats.prompt_tokens),
        ("generation_tokens", "Tokens generated", stats.generated_tokens),
        ("prefix_cache_queries", "Tokens looked up in the prefix cache", stats.prompt_tokens if reuses else 0),
        ("prefix_cache_hits", "Tokens found there", stats.cached_tokens),
        ("num_preemptions", "Sequences that lost their pages and were computed again", stats.preemptions),
        ("engine_steps", "Steps computed", stats.steps),
        ("spec_decode_num_drafts", "How often drafts of a sequence were checked", stats.drafts),
        ("spec_decode_num_draft_tokens", "Drafts checked", stats.draft_tokens),
        ("spec_decode_num_accepted_tokens", "Drafts accepted", sum(stats.accepted_by_position)),
    ]
