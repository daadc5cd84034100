"""The picture of a measurement: distributions of the four latencies, and what happened when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from arcforge_serving.bench.figures import LATENCIES, latencies
from arcforge_serving.bench.load import Record

BINS = 60


def plot(records: Sequence[Record], title: str, path: Path) -> None:
    good = [record for record in records if not record.reply.error]
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    panels = figure.subplots(2, 3)
    figure.suptitle(title, fontsize=10)
    by_name = [latencies(record) for record in good]
    for axes, name in zip(panels.flat[:4], LATENCIES, strict=True):
        values = np.sort([value for values in by_name for value in values[name]])
        axes.set(
            xlabel=name.removesuffix("_ms").upper() + ", milliseconds", ylabel="share that took less", ylim=(0, 1.02)
        )
        if len(values):
            axes.step(values, np.arange(1, len(values) + 1) / len(values), where="post")
            for share in (0.5, 0.9, 0.99):
                axes.axhline(share, color="0.85", linewidth=0.8, zorder=0)
    first = min(record.due for record in records)
    end = max(record.due + record.seconds for record in records) - first
    _running(panels.flat[4], records, first)
    _tokens(panels.flat[5], good, first, end)
    figure.savefig(path, dpi=120)


def _running(axes: Any, records: Sequence[Record], first: float) -> None:
    """Requests at a time; each that failed is a red mark where it ended."""
    changes = [(r.due - first, 1) for r in records] + [(r.due - first + r.seconds, -1) for r in records]
    times, steps = zip(*sorted(changes), strict=True)
    axes.step(times, np.cumsum(steps), where="post")
    failed = [r.due - first + r.seconds for r in records if r.reply.error]
    axes.plot(failed, [0] * len(failed), "x", color="tab:red", label="failed")
    axes.set(xlabel="seconds", ylabel="requests that run or wait", ylim=(0, None))
    if failed:
        axes.legend()


def _tokens(axes: Any, good: Sequence[Record], first: float, end: float) -> None:
    """Chunks per second."""
    times = [r.due - first + arrival for r in good for arrival in r.arrivals]
    counts, edges = np.histogram(times, bins=BINS, range=(0.0, end or 1.0))
    axes.step(edges[:-1], counts / np.diff(edges), where="post")
    axes.set(xlabel="seconds", ylabel="chunks per second", ylim=(0, None))
