"""What the records of a load say: rates, percentiles of latencies, errors, goodput.

All times count from when a request was due. TTFT: to the first chunk. ITL: from one chunk to the next. TPOT: from the
first chunk to the end, by tokens after the first. E2E: to the end of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arcforge_serving.bench.configs import SloConfig
from arcforge_serving.bench.load import Record

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
PERCENTILES = (50, 90, 95, 99)


def output_tokens(record: Record) -> int:
    """Returns a reply's tokens, or its chunks where the server did not count."""
    counted = record.reply.completion_tokens
    return len(record.reply.arrivals) if counted is None else counted


def latencies(record: Record) -> dict[str, list[float]]:
    """Returns the milliseconds of a request that succeeded; TPOT only where there was a second token."""
    arrivals, tokens = record.arrivals, output_tokens(record)
    found = {
        "ttft_ms": arrivals[:1],
        "tpot_ms": [(arrivals[-1] - arrivals[0]) / (tokens - 1)] if tokens > 1 else [],
        "itl_ms": np.diff(arrivals).tolist(),
        "e2e_ms": [record.seconds],
    }
    return {name: [1e3 * seconds for seconds in values] for name, values in found.items()}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns mean, percentiles and maximum; nothing of no values."""
    if not values:
        return {}
    points = np.percentile(values, PERCENTILES).tolist()
    named = {f"p{p}": value for p, value in zip(PERCENTILES, points, strict=True)}
    return {"mean": float(np.mean(values)), **named, "max": float(max(values))}


def keeps(record: Record, slo: SloConfig) -> bool:
    """Says whether a request succeeded within the bounds."""
    if record.reply.error:
        return False
    found = latencies(record)
    bounds = {name: bound for name in LATENCIES if (bound := getattr(slo, name, None)) is not None}
    return all(value <= bound for name, bound in bounds.items() for value in found[name])


def summarise(records: Sequence[Record], slo: SloConfig) -> dict[str, Any]:
    """Returns all figures of a measurement, the units in their names."""
    good = [record for record in records if not record.reply.error]
    first = min(record.due for record in records)
    seconds = max(record.due + record.seconds for record in records) - first
    counted = sum(record.reply.completion_tokens is not None for record in good)
    cached = [record.reply.cached_tokens for record in good if record.reply.cached_tokens is not None]
    input_tokens = sum(record.reply.prompt_tokens or 0 for record in good)
    tokens = sum(map(output_tokens, good))
    found: dict[str, Any] = {
        "requests": len(records),
        "failed": len(records) - len(good),
        "seconds": seconds,
        "requests_per_s": len(good) / seconds,
        "input_tokens": input_tokens if counted else None,
        "output_tokens": tokens,
        "tokens_counted_by": _counted_by(counted, len(good)),
        "input_tokens_per_s": input_tokens / seconds if counted else None,
        "output_tokens_per_s": tokens / seconds,
        "cached_tokens": sum(cached) if cached else None,
        "cached_share": sum(cached) / input_tokens if cached and input_tokens else None,
    }
    by_name = [latencies(record) for record in good]
    for name in LATENCIES:
        found[name] = spread([value for values in by_name for value in values[name]])
    errors: dict[str, dict[str, Any]] = {}
    for record in records:
        if kind := record.reply.error:
            errors.setdefault(kind, {"count": 0, "first": record.reply.message})["count"] += 1
    found["errors"] = errors
    if any(getattr(slo, name, None) is not None for name in LATENCIES):
        kept = sum(keeps(record, slo) for record in records)
        found["goodput"] = {"share": kept / len(records), "requests_per_s": kept / seconds}
    return found


def _counted_by(counted: int, good: int) -> str:
    if counted == good:
        return "usage"
    return f"usage of {counted}, chunks of {good - counted} requests" if counted else "chunks"


def row(record: Record) -> dict[str, Any]:
    """Returns one request for the JSON file; times in seconds."""
    reply = record.reply
    return {
        "session": record.session,
        "turn": record.turn,
        "due_s": record.due,
        "late_s": record.late,
        "arrivals_s": record.arrivals,
        "seconds": record.seconds,
        "prompt_tokens": reply.prompt_tokens,
        "cached_tokens": reply.cached_tokens,
        "output_tokens": output_tokens(record),
        "chunks": len(reply.arrivals),
        "finish_reason": reply.finish_reason,
        "error": reply.error,
        "message": reply.message or None,
    }
